//! etcd's requests, as its JSON gateway takes them (etcd 3.4 and later, `/v3/…`): 64-bit
//! numbers are strings there, keys and values base64. One endpoint at a time, the next when it
//! does not answer. Knows nothing of members.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use trapeze_core::config::Etcd;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig};

/// For a connection to an endpoint.
const CONNECT: Duration = Duration::from_secs(1);
/// For an answer, from the first byte of the request.
const ANSWER: Duration = Duration::from_secs(3);

const NEEDS_USER: &str = "It wants a user: write `user` and `password_file` into [membership.etcd]";

/// gRPC's numbers of errors, as the gateway passes them on (grpc/codes).
const DEADLINE_EXCEEDED: u64 = 4;
const PERMISSION_DENIED: u64 = 7;
const UNAVAILABLE: u64 = 14;
const UNAUTHENTICATED: u64 = 16;

/// Why etcd did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// No endpoint answers, or none that has a leader.
    #[error("{endpoint} does not answer: {why}")]
    Away {
        /// The last one that was tried.
        endpoint: String,
        /// Of the network, of TLS, or of etcd.
        why: String,
    },
    /// It does not let us.
    #[error("{endpoint} refuses: {why}")]
    Refused {
        /// Which one.
        endpoint: String,
        /// What it said and what to do.
        why: String,
    },
    /// The lease, or the history that was asked for, is not there any more: begin anew.
    #[error("{0} is gone")]
    Gone(&'static str),
    /// The key is another's.
    #[error(
        "another host is registered as {key}: {theirs:?}. Rename one of them; if that one is no \
         more, its registration ends with its lease"
    )]
    Taken {
        /// Role and name.
        key: String,
        /// What is there.
        theirs: String,
    },
}

/// What has happened to a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// It has this value.
    Put(String, String),
    /// It is not there any more.
    Deleted(String),
}

/// A client of etcd.
pub struct Gateway {
    agent: Agent,
    /// The one in use first.
    endpoints: VecDeque<String>,
    user: Option<(String, PathBuf)>,
    token: Option<String>,
}

impl Gateway {
    /// Reads what is needed for TLS; connects to nothing yet.
    ///
    /// # Errors
    /// A certificate or key cannot be read.
    pub fn open(etcd: &Etcd) -> anyhow::Result<Self> {
        let roots = match &etcd.ca {
            Some(ca) => RootCerts::new_with_certs(&certificates(ca)?),
            None => RootCerts::WebPki,
        };
        let identity = match &etcd.identity {
            Some((cert, key)) => {
                let own = PrivateKey::from_pem(&read(key)?)
                    .with_context(|| format!("{} has no private key in PEM", key.display()))?;
                Some(ClientCert::new_with_certs(&certificates(cert)?, own))
            }
            None => None,
        };
        let tls = TlsConfig::builder().root_certs(roots).client_cert(identity);
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .proxy(None)
            .tls_config(tls.build())
            .build()
            .new_agent();
        Ok(Self {
            agent,
            endpoints: etcd.endpoints.iter().cloned().collect(),
            user: etcd.user.clone(),
            token: None,
        })
    }

    /// The one in use.
    pub fn endpoint(&self) -> &str {
        self.endpoints.front().map_or("no endpoint", |url| url)
    }

    /// A new lease of so long.
    ///
    /// # Errors
    /// See [`GatewayError`], here and below.
    pub fn grant(&mut self, lease: Duration) -> Result<i64, GatewayError> {
        let answer = self.ask(
            "lease/grant",
            &json!({ "TTL": lease.as_secs().to_string() }),
        )?;
        number(&answer["ID"]).ok_or_else(|| self.nonsense("no lease in its answer"))
    }

    /// The lease lasts anew.
    pub fn keep_alive(&mut self, lease: i64) -> Result<(), GatewayError> {
        let answer = self.ask("lease/keepalive", &json!({ "ID": lease.to_string() }))?;
        match number(&answer["result"]["TTL"]) {
            Some(1..) => Ok(()),
            _ => Err(GatewayError::Gone("the lease")),
        }
    }

    /// The lease ends now, and what it holds.
    pub fn revoke(&mut self, lease: i64) -> Result<(), GatewayError> {
        self.ask("lease/revoke", &json!({ "ID": lease.to_string() }))?;
        Ok(())
    }

    /// Puts a key under a lease, unless it is there with another value.
    pub fn claim(&mut self, key: &str, value: &str, lease: i64) -> Result<(), GatewayError> {
        let put = json!({
            "request_put": { "key": encode(key), "value": encode(value), "lease": lease.to_string() }
        });
        let get = json!({ "request_range": { "key": encode(key) } });
        let absent = json!({
            "key": encode(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"
        });
        let same = json!({
            "key": encode(key), "target": "VALUE", "result": "EQUAL", "value": encode(value)
        });
        let mut theirs = String::new();
        for compare in [absent, same] {
            let ask = json!({ "compare": [compare], "success": [put], "failure": [get] });
            let answer = self.ask("kv/txn", &ask)?;
            if answer["succeeded"] == true {
                return Ok(());
            }
            let found = &answer["responses"][0]["response_range"]["kvs"][0]["value"];
            theirs = decode(found).unwrap_or_default();
        }
        Err(GatewayError::Taken {
            key: key.to_owned(),
            theirs,
        })
    }

    /// All keys that begin so, and the revision when that was.
    pub fn list(&mut self, prefix: &str) -> Result<(i64, Vec<(String, String)>), GatewayError> {
        let range = json!({ "key": encode(prefix), "range_end": behind(prefix) });
        let answer = self.ask("kv/range", &range)?;
        let revision = number(&answer["header"]["revision"]);
        let revision = revision.ok_or_else(|| self.nonsense("no revision in its answer"))?;
        let found = answer["kvs"].as_array().map_or(&[][..], |kvs| kvs);
        let pairs = found.iter().filter_map(pair).collect();
        Ok((revision, pairs))
    }

    /// Hears what happens to such keys from a revision on, for so long, or until `hear` has
    /// had enough. The revision to go on from.
    pub fn watch(
        &mut self,
        prefix: &str,
        from: i64,
        patience: Duration,
        mut hear: impl FnMut(Vec<Event>) -> ControlFlow<()>,
    ) -> Result<i64, GatewayError> {
        let create = json!({ "create_request": {
            "key": encode(prefix), "range_end": behind(prefix), "start_revision": from.to_string()
        } });
        let response = self.send("watch", &create, Some(patience));
        let mut response = response.map_err(|error| self.away(&error))?;
        if response.status() != 200 {
            let text = response.body_mut().read_to_string().unwrap_or_default();
            return Err(self.error_of(&text));
        }
        let mut next = from;
        let mut lines = BufReader::new(response.body_mut().as_reader());
        loop {
            let mut line = String::new();
            match lines.read_line(&mut line).map_err(ureq::Error::from) {
                Ok(0) => return Err(self.away("the watch has ended")),
                Ok(_) => {}
                // What has come of a line comes again.
                Err(ureq::Error::Timeout(_)) => return Ok(next),
                Err(error) => return Err(self.away(&error)),
            }
            let said: Value = serde_json::from_str(&line).unwrap_or_default();
            if said["error"].is_object() {
                return Err(self.error_of(&line));
            }
            let result = &said["result"];
            if result["canceled"] == true {
                return Err(GatewayError::Gone("the history"));
            }
            let found = result["events"].as_array().map_or(&[][..], |events| events);
            let events: Vec<Event> = found.iter().filter_map(event).collect();
            if let Some(revision) = number(&result["header"]["revision"])
                && !found.is_empty()
            {
                next = revision + 1;
            }
            if !events.is_empty() && hear(events).is_break() {
                return Ok(next);
            }
        }
    }

    /// One request, of each endpoint until one answers.
    fn ask(&mut self, what: &str, body: &Value) -> Result<Value, GatewayError> {
        let mut error = None;
        for _ in 0..self.endpoints.len() {
            match self.ask_one(what, body) {
                Err(away @ GatewayError::Away { .. }) => {
                    error = Some(away);
                    self.endpoints.rotate_left(1);
                }
                other => return other,
            }
        }
        Err(error.unwrap_or_else(|| self.away("there is none")))
    }

    fn ask_one(&mut self, what: &str, body: &Value) -> Result<Value, GatewayError> {
        if self.user.is_some() && self.token.is_none() {
            self.authenticate()?;
        }
        match self.exchange(what, body) {
            // Tokens do not last.
            Err((UNAUTHENTICATED, _)) if self.user.is_some() => {
                self.authenticate()?;
                self.exchange(what, body).map_err(|(_, error)| error)
            }
            other => other.map_err(|(_, error)| error),
        }
    }

    fn authenticate(&mut self) -> Result<(), GatewayError> {
        self.token = None;
        let Some((user, file)) = self.user.clone() else {
            return Ok(());
        };
        let password = std::fs::read_to_string(&file).map_err(|error| GatewayError::Refused {
            endpoint: self.endpoint().to_owned(),
            why: format!("no password in {}: {error}", file.display()),
        })?;
        let ask = json!({ "name": user, "password": password.trim_end_matches(['\r', '\n']) });
        let answer = self.exchange("auth/authenticate", &ask);
        let answer = answer.map_err(|(_, error)| error)?;
        self.token = answer["token"].as_str().map(str::to_owned);
        Ok(())
    }

    /// With gRPC's number of the error, or 0.
    fn exchange(&mut self, what: &str, body: &Value) -> Result<Value, (u64, GatewayError)> {
        let answer = self.send(what, body, None).and_then(|mut response| {
            let is_good = response.status() == 200;
            Ok((is_good, response.body_mut().read_to_string()?))
        });
        let (is_good, text) = answer.map_err(|error| (0, self.away(&error)))?;
        match serde_json::from_str::<Value>(&text) {
            Ok(answer) if is_good && !answer["error"].is_object() => Ok(answer),
            Ok(answer) => {
                let code = answer["code"].as_u64().unwrap_or(0);
                Err((code, self.error_of(&text)))
            }
            Err(_) => Err((0, self.nonsense(&text))),
        }
    }

    fn send(
        &self,
        what: &str,
        body: &Value,
        patience: Option<Duration>,
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let request = self.agent.post(format!("{}/v3/{what}", self.endpoint()));
        let request = request.header("Content-Type", "application/json");
        let request = match &self.token {
            Some(token) => request.header("Authorization", token),
            None => request,
        };
        let config = request.config().timeout_recv_response(Some(ANSWER));
        let config = config.timeout_recv_body(Some(patience.unwrap_or(ANSWER)));
        config.build().send(body.to_string())
    }

    fn away(&self, why: &(impl std::fmt::Display + ?Sized)) -> GatewayError {
        GatewayError::Away {
            endpoint: self.endpoint().to_owned(),
            why: why.to_string(),
        }
    }

    fn nonsense(&self, said: &str) -> GatewayError {
        // In plain text.
        if said.contains("CommonName of client") {
            return GatewayError::Refused {
                endpoint: self.endpoint().to_owned(),
                why:
                    "where users are asked for, etcd's gateway takes no certificate with a common \
                      name: make one without (openssl req -subj /O=trapeze …)"
                        .into(),
            };
        }
        let start: String = said.chars().take(80).collect();
        self.away(&format!(
            "{start:?} is not what etcd 3.4 or later says: is it etcd, its client port (2379), and its gateway on?"
        ))
    }

    /// What etcd says instead of an answer.
    fn error_of(&self, text: &str) -> GatewayError {
        let said: Value = serde_json::from_str(text).unwrap_or_default();
        // Of a stream it is within an object.
        let inner = match said["error"].is_object() {
            true => &said["error"],
            false => &said,
        };
        let message = ["message", "error"]
            .iter()
            .find_map(|key| inner[key].as_str());
        let Some(message) = message else {
            return self.nonsense(text);
        };
        let code = ["code", "grpc_code"]
            .iter()
            .find_map(|key| inner[key].as_u64());
        if message.contains("lease not found") {
            return GatewayError::Gone("the lease");
        }
        let advice = match code {
            Some(DEADLINE_EXCEEDED | UNAVAILABLE) => return self.away(message),
            Some(PERMISSION_DENIED) => {
                ". Let the user read and write there: \
                 etcdctl role grant-permission ROLE --prefix=true readwrite PREFIX"
            }
            _ if message.contains("user name is empty") => {
                return GatewayError::Refused {
                    endpoint: self.endpoint().to_owned(),
                    why: format!("{message}. {NEEDS_USER}"),
                };
            }
            _ if message.contains("authentication failed") => {
                ". Look at `user`, and at what is in `password_file`"
            }
            // An election, a cluster that is not whole.
            None | Some(_) if message.contains("leader") || message.contains("timed out") => {
                return self.away(message);
            }
            _ => "",
        };
        GatewayError::Refused {
            endpoint: self.endpoint().to_owned(),
            why: format!("{message}{advice}"),
        }
    }
}

fn event(event: &Value) -> Option<Event> {
    let kv = &event["kv"];
    match event["type"].as_str() {
        Some("DELETE") => Some(Event::Deleted(decode(&kv["key"])?)),
        _ => pair(kv).map(|(key, value)| Event::Put(key, value)),
    }
}

fn pair(kv: &Value) -> Option<(String, String)> {
    // An empty value is left out.
    Some((
        decode(&kv["key"])?,
        decode(&kv["value"]).unwrap_or_default(),
    ))
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::String(digits) => digits.parse().ok(),
        other => other.as_i64(),
    }
}

fn encode(text: &str) -> String {
    BASE64.encode(text)
}

fn decode(value: &Value) -> Option<String> {
    let bytes = BASE64.decode(value.as_str()?).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The first key that does not begin so: the end of its range.
fn behind(prefix: &str) -> String {
    let mut bytes = prefix.as_bytes().to_vec();
    // Prefixes are of ASCII, and end in `/`.
    if let Some(last) = bytes.last_mut() {
        *last += 1;
    }
    BASE64.encode(bytes)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn certificates(path: &Path) -> anyhow::Result<Vec<Certificate<'static>>> {
    let pem = read(path)?;
    let certificates: Vec<_> = ureq::tls::parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    ensure!(
        !certificates.is_empty(),
        "{} has no certificate in PEM",
        path.display()
    );
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway() -> Gateway {
        Gateway::open(&Etcd {
            endpoints: vec!["http://127.0.0.1:1".into()],
            prefix: "/trapeze".into(),
            lease: Duration::from_secs(10),
            ca: None,
            identity: None,
            user: None,
        })
        .unwrap()
    }

    #[test]
    fn nobody_at_home_is_away() {
        let error = gateway().grant(Duration::from_secs(3)).unwrap_err();
        assert!(matches!(error, GatewayError::Away { .. }), "{error}");
        assert!(error.to_string().contains("http://127.0.0.1:1"), "{error}");
    }

    #[test]
    fn errors_say_what_to_do() {
        let cases = [
            (
                r#"{"error":"etcdserver: user name is empty","code":3}"#,
                "password_file",
            ),
            (
                r#"{"error":"etcdserver: permission denied","code":7}"#,
                "grant-permission",
            ),
            (
                r#"{"error":"etcdserver: no leader","code":14}"#,
                "does not answer",
            ),
            (
                r#"{"error":{"grpc_code":14,"message":"no leader"}}"#,
                "does not answer",
            ),
            (
                r#"{"error":"etcdserver: requested lease not found","code":5}"#,
                "lease is gone",
            ),
            ("<html>", "is it etcd"),
        ];
        for (said, wanted) in cases {
            let error = gateway().error_of(said).to_string();
            assert!(error.contains(wanted), "{said}: {error}");
        }
    }

    #[test]
    fn events_are_read_as_the_gateway_writes_them() {
        let key = encode("/trapeze/c/spray/s1");
        let put = json!({ "kv": { "key": key, "value": encode("v"), "mod_revision": "7" } });
        let value = ("/trapeze/c/spray/s1".to_owned(), "v".to_owned());
        assert_eq!(event(&put), Some(Event::Put(value.0.clone(), value.1)));
        let deleted = json!({ "type": "DELETE", "kv": { "key": key } });
        assert_eq!(event(&deleted), Some(Event::Deleted(value.0)));
    }
}
