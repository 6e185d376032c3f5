//! Labs whose packets go now to one dispatcher, now to another.

use std::net::SocketAddrV4;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use trapeze_core::config::SprayMode;
use trapeze_core::flow::FlowKey;
use trapeze_core::membership::Workload;
use trapeze_core::membership::lots::{self, Holder, Lots};
use trapeze_lab::{Options, Process};

use crate::cluster::{Cluster, until};
use crate::connection::VIP;

/// Two sprays that deal packets in turn, one each, to these dispatchers.
pub fn scattered_over(
    dispatchers: &[&str],
    test: &str,
    change: impl FnOnce(&mut Options),
) -> Cluster {
    let cluster = Cluster::with(test, |options| {
        options.sprays = Some(2);
        options.dispatchers = Some(dispatchers.len() as u8);
        options.backends = Some(2);
        change(options);
    });
    deal_in_turn(&cluster);
    for dispatcher in dispatchers {
        ready(&cluster, dispatchers, dispatcher);
    }
    cluster
}

/// Its two sprays deal packets in turn, one each, from now on.
pub fn deal_in_turn(cluster: &Cluster) {
    let config = cluster.config();
    let mode = "[spraying]\nmode = \"batch\"\nbatch = 1\n";
    let config = match config.contains("[spraying]\n") {
        true => config.replace("[spraying]\n", mode),
        false => format!("{config}\n{mode}"),
    };
    for spray in ["s1", "s2"] {
        cluster.reload(spray, Process::Spray, &config);
    }
}

/// The dispatcher that has a connection in the mode `flow-hash`, and keeps it in any mode, by
/// the rule.
pub fn keeper(cluster: &Cluster, live: &[&str], client: SocketAddrV4) -> String {
    let holders: Vec<Holder> = (live.iter().enumerate())
        .map(|(slot, name)| Holder::new(slot as u16, name, Workload::IDLE))
        .collect();
    let mut table = Lots::default();
    table.fill(SprayMode::FlowHash, &holders);
    let flow = FlowKey {
        client: client.into(),
        vip: VIP.into(),
    };
    let key = lots::key(&format!("lab-{}", cluster.name()));
    let lot = lots::lot_of(&key, &flow).expect("IPv4");
    live[usize::from(table.slots()[lot])].to_owned()
}

/// The power of one dispatcher after another is cut, so many times, while `clients` work. A
/// client that ends has failed.
pub fn cut_power_in_turn(
    cluster: &Cluster,
    dispatchers: &[&str],
    rounds: usize,
    clients: &[ScopedJoinHandle<'_, ()>],
) {
    std::thread::sleep(Duration::from_millis(500));
    for round in 0..rounds {
        let victim = dispatchers[round % dispatchers.len()];
        cluster.kill(victim, None).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        cluster.start(victim, None).unwrap();
        ready(cluster, dispatchers, victim);
        std::thread::sleep(Duration::from_millis(500));
        let died = clients.iter().any(ScopedJoinHandle::is_finished);
        assert!(!died, "a transfer failed in round {round}, {victim}");
    }
}

/// Waits until a dispatcher has all records, and the others of `all` know that.
pub fn ready(cluster: &Cluster, all: &[&str], dispatcher: &str) {
    until("it keeps its share of flows", || {
        let keeps = cluster.dispatch_status(dispatcher)?.keeps_flows;
        let others = all.iter().filter(|name| **name != dispatcher);
        let mut views = others.filter_map(|name| cluster.dispatch_status(name));
        let is_known = views.all(|view| {
            let seen = view.peers.iter().find(|peer| peer.name == dispatcher);
            seen.is_some_and(|peer| peer.fit && peer.state == "alive" && peer.lots > 0)
        });
        (keeps && is_known).then_some(())
    });
}
