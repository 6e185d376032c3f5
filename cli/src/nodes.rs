//! Which of this host's nodes a command is about, and how it tells of each.

use std::fmt::Display;

use anyhow::{bail, ensure};
use serde::Serialize;
use trapeze_datapath::node::{Node, Role};

use crate::output::Output;

/// A report for each of this host's nodes
#[derive(Clone, Debug, clap::Args)]
pub struct PerNode {
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    output: Output,
}

impl PerNode {
    /// Looks at each node, and prints what was found.
    pub fn report<T: Serialize + Display>(
        &self,
        look: impl FnMut(&Node) -> anyhow::Result<T>,
    ) -> anyhow::Result<Vec<T>> {
        self.report_on(&self.select.nodes()?, look)
    }

    /// The same of dispatchers alone.
    pub fn report_dispatchers<T: Serialize + Display>(
        &self,
        look: impl FnMut(&Node) -> anyhow::Result<T>,
    ) -> anyhow::Result<Vec<T>> {
        self.report_on(&self.select.dispatchers()?, look)
    }

    fn report_on<T: Serialize + Display>(
        &self,
        nodes: &[Node],
        look: impl FnMut(&Node) -> anyhow::Result<T>,
    ) -> anyhow::Result<Vec<T>> {
        let reports: Vec<T> = nodes.iter().map(look).collect::<anyhow::Result<_>>()?;
        self.output.each(&reports)?;
        Ok(reports)
    }
}

/// Which of this host's nodes
#[derive(Clone, Debug, clap::Args)]
pub struct Select {
    /// Only this node of the host, by NAME or CLUSTER/NAME
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

impl Select {
    /// The nodes that are meant, at least one.
    fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        choose(Node::local()?, self.node.as_deref())
    }

    /// The dispatchers among them, at least one.
    fn dispatchers(&self) -> anyhow::Result<Vec<Node>> {
        let mut nodes = self.nodes()?;
        let names = names(&nodes);
        nodes.retain(|node| node.role == Role::Dispatcher);
        ensure!(
            !nodes.is_empty(),
            "this is known to dispatchers, and here is {names}: run it on a dispatcher's host"
        );
        Ok(nodes)
    }

    /// The only spray, if no dispatcher is among them.
    pub fn spray(&self) -> anyhow::Result<Option<Node>> {
        let nodes = self.nodes()?;
        if nodes.iter().any(|node| node.role == Role::Dispatcher) {
            return Ok(None);
        }
        let mut sprays = nodes.into_iter().filter(|node| node.role == Role::Spray);
        Ok(sprays.next().filter(|_| sprays.next().is_none()))
    }

    /// The only dispatcher.
    pub fn dispatcher(&self) -> anyhow::Result<Node> {
        let mut nodes = self.dispatchers()?;
        ensure!(
            nodes.len() == 1,
            "there are {}: choose one with --node",
            names(&nodes)
        );
        Ok(nodes.remove(0))
    }
}

fn choose(mut nodes: Vec<Node>, name: Option<&str>) -> anyhow::Result<Vec<Node>> {
    if nodes.is_empty() {
        bail!(
            "no node runs here, in this network namespace: start one with `trapeze dispatch`, \
             `trapeze agent` or `trapeze spray`, or ask where one runs; `trapeze doctor` tells what this host lacks"
        );
    }
    let Some(name) = name else { return Ok(nodes) };
    let names = names(&nodes);
    nodes.retain(|node| node.name == name || format!("{}/{}", node.cluster, node.name) == name);
    ensure!(
        !nodes.is_empty(),
        "no node of this host is named {name}; there is {names}"
    );
    Ok(nodes)
}

fn names(nodes: &[Node]) -> String {
    let name = |n: &Node| format!("{} {}/{}", n.role.name(), n.cluster, n.name);
    nodes.iter().map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(cluster: &str, name: &str) -> Node {
        Node {
            cluster: cluster.into(),
            name: name.into(),
            role: Role::Agent,
            config: "/etc/trapeze/trapeze.toml".into(),
            pid: 1,
            namespace: 1,
        }
    }

    #[test]
    fn a_name_may_be_qualified_by_its_cluster() {
        let here = || vec![node("east", "b1"), node("west", "b1"), node("west", "b2")];
        assert_eq!(choose(here(), None).unwrap().len(), 3);
        assert_eq!(choose(here(), Some("b1")).unwrap().len(), 2);
        assert_eq!(
            choose(here(), Some("west/b1")).unwrap(),
            [node("west", "b1")]
        );
        let error = choose(here(), Some("b3")).unwrap_err().to_string();
        assert!(error.contains("agent east/b1"), "{error}");
    }

    #[test]
    fn without_a_node_the_error_says_what_to_do() {
        let error = choose(Vec::new(), None).unwrap_err().to_string();
        assert!(error.contains("trapeze dispatch"), "{error}");
    }
}
