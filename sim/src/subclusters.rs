//! Thousands of dispatchers in sub-clusters [SPLICE06 §8]: what each node has to remember,
//! what a connection costs in messages between nodes, and how even the load is. Packets are
//! routed by the rule itself (`trapeze_core::membership::subclusters`); there is no time:
//! connections are all open at once, and links are as fast as need be.
//!
//! A connection is a SYN and a bare ACK, which any front-end node answers or drops without
//! state, then packets of the client. The first of those finds its owner, who tells all of
//! its sub-cluster what it decided; at the end it tells them again.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use trapeze_core::membership::subclusters::{FRONT, Farm, Place, Step};

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Nodes in all, 1..=100,000.
    pub nodes: usize,
    /// The most nodes of a sub-cluster; all have as many, or one less.
    pub size: usize,
    /// Connections that are open for each node.
    pub connections: usize,
    /// The client's packets of each, from the first payload on.
    pub packets: usize,
    /// Of all randomness.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Nodes in all.
    pub nodes: usize,
    /// Sub-clusters, the front end among them.
    pub clusters: usize,
    /// Flow records that a node holds.
    pub records: Spread,
    /// The same if all nodes were one cluster.
    pub records_flat: usize,
    /// Messages between nodes for a connection.
    pub messages: Messages,
    /// The same for records, if all nodes were one cluster.
    pub updates_flat: usize,
    /// Packets that a node of the front end handles, with those that it answers itself.
    pub front: Spread,
    /// Packets that a node behind it handles; none without one.
    pub back: Option<Spread>,
    /// Connections whose requests a node decides.
    pub owned: Spread,
}

/// Mean and greatest of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Over nodes.
    pub mean: f64,
    /// Of the node that has most.
    pub max: usize,
}

/// Messages for a connection, in the mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Messages {
    /// Client's packets passed on from the front end.
    pub passed_on: f64,
    /// Client's packets passed on to their owner.
    pub to_owner: f64,
    /// Record updates, one for each receiver; by multicast two in all.
    pub updates: f64,
}

impl Spread {
    fn of(counts: &[usize]) -> Self {
        Spread {
            mean: counts.iter().sum::<usize>() as f64 / counts.len().max(1) as f64,
            max: counts.iter().copied().max().unwrap_or(0),
        }
    }

    /// How much more than a mean node the busiest has; 1 if all have the same.
    pub fn over_mean(&self) -> f64 {
        self.max as f64 / self.mean
    }
}

/// What nodes have done, by place.
struct Counts(Vec<Vec<usize>>);

impl Counts {
    fn new(farm: &Farm) -> Self {
        Counts(farm.sizes().map(|size| vec![0; size]).collect())
    }

    fn add(&mut self, place: Place) {
        self.0[place.cluster][place.member] += 1;
    }
}

/// Opens all connections and sends their packets.
pub fn simulate(setup: &Setup) -> Outcome {
    let farm = farm(setup.nodes, setup.size);
    let sizes: Vec<usize> = farm.sizes().collect();
    let mut random = SmallRng::seed_from_u64(setup.seed);
    let connections = setup.nodes * setup.connections;
    let (mut handled, mut owned) = (Counts::new(&farm), Counts::new(&farm));
    let mut records = vec![0; sizes.len()];
    let (mut passed_on, mut to_owner, mut updates) = (0usize, 0usize, 0usize);
    for _ in 0..connections {
        let flow = random.random();
        let owner = farm.owner_of(flow);
        owned.add(owner);
        // SYN and bare ACK: no state, anywhere in front.
        for _ in 0..2 {
            handled.add(any(FRONT, &sizes, &mut random));
        }
        for packet in 0..setup.packets {
            let is_known = packet > 0;
            let mut here = any(FRONT, &sizes, &mut random);
            loop {
                handled.add(here);
                let knows = is_known && here.cluster == owner.cluster;
                match farm.step_towards(here, owner, knows, random.random()) {
                    Step::Forward => break,
                    Step::ToOwner(place) if place == here => break,
                    Step::ToOwner(place) => {
                        to_owner += 1;
                        handled.add(place);
                        break;
                    }
                    Step::PassOn(place) => {
                        passed_on += 1;
                        here = place;
                    }
                }
            }
        }
        records[owner.cluster] += 1;
        // When it is decided, and when it has ended.
        updates += 2 * (sizes[owner.cluster] - 1);
    }
    let held: Vec<usize> = (records.iter().zip(&sizes))
        .flat_map(|(&records, &size)| std::iter::repeat_n(records, size))
        .collect();
    let mean = |messages: usize| messages as f64 / connections.max(1) as f64;
    let back = handled.0[FRONT + 1..].concat();
    Outcome {
        nodes: setup.nodes,
        clusters: sizes.len(),
        records: Spread::of(&held),
        records_flat: connections,
        messages: Messages {
            passed_on: mean(passed_on),
            to_owner: mean(to_owner),
            updates: mean(updates),
        },
        updates_flat: 2 * (setup.nodes - 1),
        front: Spread::of(&handled.0[FRONT]),
        back: (!back.is_empty()).then(|| Spread::of(&back)),
        owned: Spread::of(&owned.0.concat()),
    }
}

/// Sub-clusters of sizes that differ by one at most.
fn farm(nodes: usize, size: usize) -> Farm {
    let clusters = nodes.div_ceil(size.max(1)).max(1);
    let names: Vec<Vec<String>> = (0..clusters)
        .map(|cluster| {
            let first = cluster * nodes / clusters;
            let end = (cluster + 1) * nodes / clusters;
            (first..end).map(|node| format!("n{node}")).collect()
        })
        .collect();
    Farm::new(&names).expect("each has a node")
}

fn any(cluster: usize, sizes: &[usize], random: &mut SmallRng) -> Place {
    Place {
        cluster,
        member: random.random_range(0..sizes[cluster]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(nodes: usize) -> Setup {
        Setup {
            nodes,
            size: 50,
            connections: 40,
            packets: 6,
            seed: 3,
        }
    }

    #[test]
    fn state_and_messages_do_not_grow_with_the_whole() {
        let (small, large) = (simulate(&setup(200)), simulate(&setup(2000)));
        assert_eq!((small.clusters, large.clusters), (4, 40));
        // 50 nodes' connections, wherever they are.
        for outcome in [&small, &large] {
            assert!((outcome.records.mean - 2000.0).abs() < 1e-6, "{outcome:?}");
            assert!(outcome.records.over_mean() < 1.15, "{outcome:?}");
            assert!((outcome.messages.updates - 98.0).abs() < 1e-6);
        }
        assert_eq!((large.records_flat, large.updates_flat), (80_000, 3998));
        // All packets but those of the front end's own flows are passed on.
        let share = |outcome: &Outcome| outcome.messages.passed_on / 6.0;
        assert!((share(&small) - 0.75).abs() < 0.02, "{}", share(&small));
        assert!((share(&large) - 0.975).abs() < 0.01, "{}", share(&large));
        assert!((large.messages.to_owner - 0.98).abs() < 0.01);
    }

    #[test]
    fn one_sub_cluster_is_the_flat_cluster() {
        let outcome = simulate(&setup(50));
        assert_eq!(outcome.clusters, 1);
        assert_eq!(outcome.back, None);
        assert_eq!(outcome.messages.passed_on, 0.0);
        assert_eq!(outcome.records.max, outcome.records_flat);
        assert_eq!(outcome.messages.updates, outcome.updates_flat as f64);
    }

    #[test]
    fn the_front_end_carries_all_packets() {
        let outcome = simulate(&setup(1000));
        // 8 packets a connection, 40 connections a node, 20 nodes for each in front.
        assert!((outcome.front.mean - 6400.0).abs() < 64.0, "{outcome:?}");
        let back = outcome.back.unwrap();
        assert!(back.mean < outcome.front.mean / 10.0, "{outcome:?}");
        assert!(
            outcome.front.over_mean() < 1.1 && back.over_mean() < 1.5,
            "{outcome:?}"
        );
    }

    #[test]
    fn the_same_seed_gives_the_same() {
        assert_eq!(simulate(&setup(150)), simulate(&setup(150)));
    }
}
