//! What must hold between parts of the file: names that are unique or resolve,
//! addresses that do not collide and are of the family that is served.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use toml::Spanned;

use super::nearest::suggestion;
use super::section::Source;
use super::{Dispatcher, Pool, Transfer};

/// A value read from the file and where it stands; absent if missing or wrong.
pub(super) type Found<T> = Option<Spanned<T>>;

/// What holds between parts of the file.
pub(super) struct Checks<'s> {
    pub(super) source: &'s Source<'s>,
    /// Names of nodes, of whichever kind.
    nodes: Vec<String>,
    /// Addresses of nodes, and which node has each.
    node_addresses: Vec<(IpAddr, String)>,
    /// Addresses from which dispatchers splice, and which dispatcher does from each.
    splice_addresses: Vec<(Spanned<IpAddr>, String)>,
    /// Where dispatchers say their sub-clusters.
    sub_clusters: Vec<Spanned<u8>>,
}

impl<'s> Checks<'s> {
    pub(super) fn new(source: &'s Source<'s>) -> Self {
        Checks {
            source,
            nodes: Vec::new(),
            node_addresses: Vec::new(),
            splice_addresses: Vec::new(),
            sub_clusters: Vec::new(),
        }
    }

    /// Nodes share one set of names; `addresses` are those of nodes of its kind.
    pub(super) fn node(
        &mut self,
        name: &Found<String>,
        address: &Found<IpAddr>,
        kind: &str,
        addresses: &mut Vec<IpAddr>,
    ) {
        let mut nodes = std::mem::take(&mut self.nodes);
        self.unique(name, "node", &mut nodes);
        self.nodes = nodes;
        let Some(address) = address else { return };
        let (ip, span) = (*address.get_ref(), address.span());
        self.family(ip, span.clone());
        if addresses.contains(&ip) {
            self.source
                .error(span, format!("another {kind} has the address {ip}"));
        }
        addresses.push(ip);
        let name = name.as_ref().map_or("", |name| name.get_ref());
        self.node_addresses.push((ip, name.to_owned()));
    }

    pub(super) fn unique(&self, name: &Found<String>, kind: &str, names: &mut Vec<String>) {
        let Some(name) = name else { return };
        if names.contains(name.get_ref()) {
            let message = format!("there is a {kind} `{}` already: rename one", name.get_ref());
            self.source.error(name.span(), message);
        }
        names.push(name.get_ref().clone());
    }

    /// A node that has the VIP as its own address would take its packets.
    pub(super) fn vip(&self, vip: &Spanned<SocketAddr>) {
        let ip = vip.get_ref().ip();
        self.family(ip, vip.span());
        let node = self.node_addresses.iter().find(|(other, _)| *other == ip);
        let spliced = (self.splice_addresses.iter()).find(|(other, _)| *other.get_ref() == ip);
        let message = match (node, spliced) {
            (Some((_, node)), _) => {
                format!("{ip} is the own address of `{node}`: a service needs one that no node has")
            }
            (None, Some((_, dispatcher))) => format!(
                "{ip} is the `splice_address` of the dispatcher `{dispatcher}`: a service needs one \
                 that is nothing else"
            ),
            (None, None) => return,
        };
        self.source.error(vip.span(), message);
    }

    /// To be looked at when all nodes are known.
    pub(super) fn splice_address(&mut self, dispatcher: &Found<String>, address: &Found<IpAddr>) {
        let Some(address) = address else { return };
        self.family(*address.get_ref(), address.span());
        let address = Spanned::new(address.span(), *address.get_ref());
        let dispatcher = dispatcher.as_ref().map_or("", |name| name.get_ref());
        self.splice_addresses.push((address, dispatcher.to_owned()));
    }

    /// They are like VIPs: no node has one of them, and no other dispatcher.
    pub(super) fn splice_addresses(&self) {
        for (index, (address, _)) in self.splice_addresses.iter().enumerate() {
            let ip = *address.get_ref();
            let before = (self.splice_addresses[..index].iter())
                .map(|(other, dispatcher)| (*other.get_ref(), dispatcher));
            let mut nodes = (self.node_addresses.iter()).map(|(other, node)| (*other, node));
            let taken = nodes.find(|(other, _)| *other == ip);
            if let Some((_, node)) = taken.or_else(|| before.into_iter().find(|(o, _)| *o == ip)) {
                let message = format!(
                    "{ip} is an address of `{node}`: a splice address is nothing else, and one dispatcher's"
                );
                self.source.error(address.span(), message);
            }
        }
    }

    /// To be looked at when all are known.
    pub(super) fn sub_cluster(&mut self, number: &Found<u8>) {
        let number = number.as_ref();
        (self.sub_clusters).extend(number.map(|n| Spanned::new(n.span(), *n.get_ref())));
    }

    /// Packets come to the front end, and no number is left out: the flows of a sub-cluster
    /// without anybody would be the front end's for ever.
    pub(super) fn sub_clusters(&self, dispatchers: &[Dispatcher]) {
        let is_there = |number: u8| dispatchers.iter().any(|d| d.sub_cluster == number);
        let lacks = |number: &u8| !is_there(*number);
        let Some(first) = self.sub_clusters.iter().find(|n| *n.get_ref() > 0) else {
            return;
        };
        if !is_there(0) {
            let message = "no dispatcher is in the front end, which clients' packets come to: \
                           leave `sub_cluster` out where sprays or routers send";
            return self.source.error(first.span(), message);
        }
        let last = self.sub_clusters.iter().max_by_key(|n| *n.get_ref());
        let last = last.expect("there is one");
        let missing: Vec<String> = (1..*last.get_ref())
            .filter(lacks)
            .map(|n| n.to_string())
            .collect();
        if !missing.is_empty() {
            let message = format!(
                "there is a sub-cluster {}, and no dispatcher in {}: number them from 1 on \
                 without a gap",
                last.get_ref(),
                missing.join(", ")
            );
            self.source.error(last.span(), message);
        }
    }

    /// Splicing is done from an address that every dispatcher must have.
    pub(super) fn transfer(&self, transfer: Found<Transfer>, has_addresses: bool) -> Transfer {
        let Some(transfer) = transfer else {
            return Transfer::default();
        };
        if transfer.get_ref().connects() && !has_addresses {
            let message = format!(
                "`transfer = \"{}\"` needs an address from which dispatchers connect: write \
                 `splice_address = \"...\"` in each [[dispatcher]], one that no node has",
                transfer.get_ref().name()
            );
            self.source.error(transfer.span(), message);
        }
        transfer.into_inner()
    }

    pub(super) fn server(&self, server: &Found<SocketAddr>) {
        // `[::]` and `0.0.0.0` both mean any address.
        if let Some(server) = server
            .as_ref()
            .filter(|s| !s.get_ref().ip().is_unspecified())
        {
            self.family(server.get_ref().ip(), server.span());
        }
    }

    fn family(&self, ip: IpAddr, span: Range<usize>) {
        if ip.is_ipv6() {
            let message = format!("{ip} is IPv6, which is not served yet: write an IPv4 address");
            self.source.error(span, message);
        }
    }

    pub(super) fn pool(&self, name: &Spanned<&str>, pools: &[Pool]) -> Option<usize> {
        self.resolve(
            name.get_ref(),
            name.span(),
            "pool",
            pools.iter().map(|p| p.name.as_str()),
        )
    }

    /// The index of the thing that is called so.
    pub(super) fn resolve<'n>(
        &self,
        name: &str,
        span: Range<usize>,
        kind: &str,
        names: impl Iterator<Item = &'n str> + Clone,
    ) -> Option<usize> {
        let index = names.clone().position(|n| n == name);
        if index.is_none() {
            let hint = match suggestion(name, names) {
                nothing if nothing.is_empty() => format!("; add a [[{kind}]] of that name"),
                suggestion => suggestion,
            };
            self.source
                .error(span, format!("there is no {kind} `{name}`{hint}"));
        }
        index
    }
}
