//! The client: curl on c1, whose output is compared with the document while it
//! arrives.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::lab::Lab;
use crate::program;
use crate::role::VIP;
use crate::state::RunDir;

const CLIENT: &str = "c1";
/// What no request of the demo may take, in seconds.
const PATIENCE_S: u32 = 30;

/// What curl is to ask for.
#[derive(Clone, Debug)]
pub struct Request {
    path: String,
    headers: Vec<String>,
    server_name: Option<String>,
    rate_limit_bytes: Option<u64>,
}

/// A request on its way.
pub struct Download {
    curl: Child,
    output: BufReader<ChildStdout>,
    head: String,
    document: Option<BufReader<File>>,
    received: u64,
    is_identical: bool,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    /// The first line of the head.
    pub status: String,
    /// Which backend says that it answers: `X-Backend`.
    pub server: String,
    /// Bytes of the body.
    pub length: u64,
    /// Whether they are the document's.
    pub is_identical: bool,
    /// The common name in the server's certificate.
    pub certificate: Option<String>,
}

impl Request {
    pub fn get(path: &str) -> Self {
        Request {
            path: path.to_owned(),
            headers: Vec::new(),
            server_name: None,
            rate_limit_bytes: None,
        }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push(format!("{name}: {value}"));
        self
    }

    pub fn host(self, host: &str) -> Self {
        self.header("Host", host)
    }

    /// Over TLS, to a server of this name.
    pub fn tls(mut self, name: &str) -> Self {
        self.server_name = Some(name.to_owned());
        self
    }

    /// Bytes a second.
    pub fn rate_limit(mut self, bytes: u64) -> Self {
        self.rate_limit_bytes = Some(bytes);
        self
    }

    fn url(&self) -> String {
        match &self.server_name {
            Some(name) => format!("https://{name}{}", self.path),
            None => format!("http://{VIP}{}", self.path),
        }
    }

    fn arguments(&self, certificates: PathBuf) -> Vec<String> {
        let mut arguments: Vec<String> = ["-sS", "-i", "-m"].map(str::to_owned).into();
        arguments.push(PATIENCE_S.to_string());
        for header in &self.headers {
            arguments.extend(["-H".to_owned(), header.clone()]);
        }
        if let Some(rate) = self.rate_limit_bytes {
            arguments.extend(["--limit-rate".to_owned(), rate.to_string()]);
        }
        if let Some(name) = &self.server_name {
            arguments.extend(["--resolve".to_owned(), format!("{name}:443:{VIP}")]);
            arguments.push("--cacert".to_owned());
            arguments.push(certificates.to_string_lossy().into_owned());
            arguments.extend(["-w".to_owned(), "%{stderr}%{certs}".to_owned()]);
        }
        arguments.push(self.url());
        arguments
    }
}

/// As one would type it, without what only this program needs.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "curl {}", self.url())?;
        for header in &self.headers {
            write!(f, " -H '{header}'")?;
        }
        match self.rate_limit_bytes {
            Some(rate) => write!(f, " --limit-rate {}M", rate >> 20),
            None => Ok(()),
        }
    }
}

impl Download {
    /// Starts it, and returns at once.
    pub fn start(lab: &Lab, request: &Request) -> Result<Self> {
        let certificates = RunDir::of(lab.name()).tls().join("all.pem");
        let mut curl = lab
            .host(CLIENT)?
            .command(program::find("curl")?)
            .args(request.arguments(certificates))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start curl")?;
        let output = curl.stdout.take().context("curl has no output")?;
        let document = lab
            .status()?
            .root
            .join(request.path.trim_start_matches('/'));
        Ok(Download {
            curl,
            output: BufReader::with_capacity(1 << 18, output),
            head: String::new(),
            document: File::open(document).ok().map(BufReader::new),
            received: 0,
            is_identical: true,
        })
    }

    /// Bytes of the body so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether curl is done, one way or the other.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.curl.try_wait(), Ok(None))
    }

    /// Reads until so much of the body has come.
    ///
    /// # Errors
    /// It ended before.
    pub fn read_to(&mut self, length: u64) -> Result<()> {
        while self.received < length {
            if !self.read_some()? {
                let said = self.complaint();
                bail!("the download ended after {} bytes: {said}", self.received);
            }
        }
        Ok(())
    }

    /// Reads to the end.
    ///
    /// # Errors
    /// curl failed.
    pub fn finish(mut self) -> Result<Answer> {
        while self.read_some()? {}
        let said = self.complaint();
        let status = self.curl.wait()?;
        ensure!(status.success(), "curl failed: {said}");
        if let Some(document) = &mut self.document {
            self.is_identical &= document.fill_buf()?.is_empty();
        }
        let field = |name: &str| {
            self.head.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name)
                    .then(|| value.trim().to_owned())
            })
        };
        Ok(Answer {
            status: self.head.lines().next().unwrap_or_default().to_owned(),
            server: field("X-Backend").unwrap_or_else(|| "no server".to_owned()),
            length: self.received,
            is_identical: self.document.is_some() && self.is_identical,
            certificate: common_name(&said),
        })
    }

    /// False at the end.
    fn read_some(&mut self) -> Result<bool> {
        if self.head.is_empty() {
            return self.read_head();
        }
        let came = self.output.fill_buf()?;
        let length = came.len();
        if let Some(document) = &mut self.document {
            let mut expected = vec![0; length];
            match document.read_exact(&mut expected) {
                Ok(()) => self.is_identical &= expected == came,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => self.is_identical = false,
                Err(error) => return Err(error).context("cannot read the document"),
            }
        }
        self.output.consume(length);
        self.received += length as u64;
        Ok(length > 0)
    }

    fn read_head(&mut self) -> Result<bool> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line)? == 0 {
                return Ok(false);
            }
            if line.trim_end().is_empty() {
                return Ok(true);
            }
            self.head += &line;
        }
    }

    /// What curl wrote beside the answer.
    fn complaint(&mut self) -> String {
        let mut said = String::new();
        if let Some(mut errors) = self.curl.stderr.take() {
            let _ = errors.read_to_string(&mut said);
        }
        said.trim().to_owned()
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // Nothing is left behind when a scene fails half-way.
        let _ = self.curl.kill();
        let _ = self.curl.wait();
    }
}

impl Answer {
    /// # Errors
    /// The server did not say 200.
    pub fn check_status(&self) -> Result<()> {
        if self.status.split(' ').nth(1) != Some("200") {
            bail!("the answer is {:?}", self.status);
        }
        Ok(())
    }
}

/// The name in the first certificate, as curl prints it.
fn common_name(text: &str) -> Option<String> {
    let subject = text
        .lines()
        .find_map(|line| line.strip_prefix("Subject:"))?;
    let (_, name) = subject.split_once("CN")?;
    Some(name.trim_start_matches([' ', '=']).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_as_one_would_type_it() {
        let request = Request::get("/1k").host("www.static.example");
        assert_eq!(
            request.to_string(),
            "curl http://10.77.0.100/1k -H 'Host: www.static.example'"
        );
        let request = Request::get("/").tls("a.lab");
        assert_eq!(request.to_string(), "curl https://a.lab/");
    }

    #[test]
    fn the_common_name_is_found_in_what_curl_prints() {
        for line in ["Subject:CN = b2.lab", "Subject:CN=b2.lab"] {
            let text = format!("{line}\nIssuer:CN = other\n");
            assert_eq!(common_name(&text).as_deref(), Some("b2.lab"));
        }
        assert_eq!(common_name("curl: (7) failed"), None);
    }
}
