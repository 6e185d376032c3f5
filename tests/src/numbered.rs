//! Numbered requests: each has a number in its query, so that the servers' logs
//! tell who has run it, and how often.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use crate::cluster::{Cluster, until};
use crate::connection::{Connection, Response};

/// A lab's documents, by path, and what has been asked for.
pub struct Numbered {
    documents: Vec<(String, Vec<u8>)>,
}

/// Which backend has answered which request.
pub type Answered = BTreeMap<u64, String>;

impl Numbered {
    /// Requests for the lab's documents of these names. Servers must log
    /// (`Options::access_log`).
    pub fn of(cluster: &Cluster, documents: &[&str]) -> Self {
        let read = |name: &&str| (format!("/{name}"), cluster.document(name));
        Self {
            documents: documents.iter().map(read).collect(),
        }
    }

    /// The text of request `number`, for a document that the number chooses.
    pub fn request(&self, number: u64) -> String {
        let (path, _) = self.document(number);
        format!("GET {path}?n={number} HTTP/1.1\r\nHost: site.example\r\n\r\n")
    }

    /// Asserts that this is the answer to request `number`; who gave it.
    pub fn check(&self, number: u64, response: &Response) -> String {
        let (path, body) = self.document(number);
        assert_eq!(response.status, 200, "request {number}: {}", response.head);
        crate::same(&response.body, body);
        assert!(!path.is_empty());
        response.backend().to_owned()
    }

    /// Sends requests one by one, each when the last has been answered.
    ///
    /// # Errors
    /// The connection ends.
    pub fn ask_each(
        &self,
        client: &mut Connection,
        numbers: impl IntoIterator<Item = u64>,
    ) -> io::Result<Answered> {
        let mut answered = Answered::new();
        for number in numbers {
            client.try_send(self.request(number))?;
            let response = client.try_response(true)?;
            answered.insert(number, self.check(number, &response));
        }
        Ok(answered)
    }

    /// Sends requests all at once, and reads their answers.
    ///
    /// # Errors
    /// The connection ends.
    pub fn pipeline(
        &self,
        client: &mut Connection,
        numbers: impl IntoIterator<Item = u64> + Clone,
    ) -> io::Result<Answered> {
        let text: String = (numbers.clone().into_iter())
            .map(|number| self.request(number))
            .collect();
        client.try_send(text)?;
        self.answers(client, numbers)
    }

    /// Keeps `ahead` requests unanswered, and reads their answers.
    ///
    /// # Errors
    /// The connection ends.
    pub fn ask_ahead(
        &self,
        client: &mut Connection,
        numbers: impl IntoIterator<Item = u64> + Clone,
        ahead: usize,
    ) -> io::Result<Answered> {
        let mut asked = numbers.clone().into_iter();
        for number in asked.by_ref().take(ahead) {
            client.try_send(self.request(number))?;
        }
        let mut answered = Answered::new();
        for number in numbers {
            let response = client.try_response(true)?;
            answered.insert(number, self.check(number, &response));
            if let Some(next) = asked.next() {
                client.try_send(self.request(next))?;
            }
        }
        Ok(answered)
    }

    /// Sends requests one behind the other in pieces of `size` bytes, some milliseconds apart, and reads their answers.
    ///
    /// # Errors
    /// The connection ends.
    pub fn drip(
        &self,
        client: &mut Connection,
        numbers: impl IntoIterator<Item = u64> + Clone,
        size: usize,
    ) -> io::Result<Answered> {
        let requests = numbers.clone().into_iter();
        let text: String = requests.map(|number| self.request(number)).collect();
        for piece in text.as_bytes().chunks(size) {
            client.try_send(piece)?;
            std::thread::sleep(Duration::from_millis(3));
        }
        self.answers(client, numbers)
    }

    fn answers(
        &self,
        client: &mut Connection,
        numbers: impl IntoIterator<Item = u64>,
    ) -> io::Result<Answered> {
        numbers
            .into_iter()
            .map(|number| {
                let response = client.try_response(true)?;
                Ok((number, self.check(number, &response)))
            })
            .collect()
    }

    fn document(&self, number: u64) -> &(String, Vec<u8>) {
        // The documents in no order that a policy could have as well.
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        &self.documents[mixed as usize % self.documents.len()]
    }
}

/// Asserts that the servers have run each request once, and where it was answered.
pub fn check_logs(cluster: &Cluster, answered: &Answered) {
    let logs = cluster.status().expect("the lab is up").logs;
    let backends: BTreeSet<&str> = answered.values().map(String::as_str).collect();
    let read = |backend: &str| -> Vec<u64> {
        let text = std::fs::read_to_string(logs.join(format!("{backend}.access.log")));
        let text = text.expect("servers log");
        let numbers = text.lines().filter_map(|line| {
            let (_, rest) = line.split_once("?n=")?;
            rest.split(' ').next()?.parse().ok()
        });
        numbers.collect()
    };
    // Servers log when they have sent, which the client may know before.
    until("the servers have logged all answers", || {
        let count: usize = backends.iter().map(|backend| read(backend).len()).sum();
        (count >= answered.len()).then_some(())
    });
    let mut run = BTreeMap::new();
    for backend in backends {
        for number in read(backend) {
            if let Some(before) = run.insert(number, backend) {
                panic!("request {number} has run at {before} and again at {backend}");
            }
        }
    }
    for (number, backend) in answered {
        assert_eq!(run.get(number), Some(&backend.as_str()), "request {number}");
    }
    assert_eq!(run.len(), answered.len(), "nothing else has run");
}
