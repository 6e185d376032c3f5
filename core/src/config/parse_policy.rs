//! How a pool chooses: `policy`, `stickiness` and `costs`, each a word or a table.

use std::time::Duration;

use super::section::{Section, WordOrTable};
use super::{Costs, PolicyConfig, PolicyKind, Stickiness, value};
use crate::policy::{CacheParameters, Class, LardParameters, MaglevParameters, XlardRParameters};

/// `"lard"`, or `{ name = "lard", t_high = 65 }`.
pub(super) fn read_policy(pool: &mut Section<'_>) -> PolicyConfig {
    const TITLE: &str = "[pool.policy]";
    match pool.word_or_table("policy", TITLE, value::policy) {
        Some(WordOrTable::Word(kind)) => kind.into(),
        Some(WordOrTable::Table(mut table)) => {
            let kind = table.required("name", "\"lard\"", value::policy);
            // Whose keys they are is not known.
            let Some(kind) = kind else {
                return PolicyKind::default().into();
            };
            let config = read_parameters(kind.into_inner(), &mut table);
            table.finish();
            config
        }
        None => PolicyKind::default().into(),
    }
}

fn read_parameters(kind: PolicyKind, table: &mut Section<'_>) -> PolicyConfig {
    let mut config = PolicyConfig::from(kind);
    match &mut config {
        PolicyConfig::RoundRobin
        | PolicyConfig::LeastConnections
        | PolicyConfig::Hrw
        | PolicyConfig::Cawll
        | PolicyConfig::Cap
        | PolicyConfig::TwoChoices => {}
        PolicyConfig::Lard(p) => read_lard(p, table),
        PolicyConfig::LardR(p) => {
            read_lard(&mut p.lard, table);
            duration(table, "k", &mut p.k, DAY);
        }
        PolicyConfig::XlardR(p) | PolicyConfig::Cahrd(p) => read_xlard_r(p, table),
        PolicyConfig::CachePrediction(p) => read_cache(p, table),
        PolicyConfig::Lacp(p) => {
            p.t_low = optional_number(table, "t_low", 1_000_000);
            p.t_high = optional_number(table, "t_high", 1_000_000);
            ordered(p.t_low, p.t_high, table);
            read_cache(&mut p.cache, table);
        }
        PolicyConfig::Maglev(p) => {
            let m = table.optional("m", |v| {
                let m = value::integer(v, 2..=16_777_213)? as u32;
                match MaglevParameters::is_prime(m) {
                    true => Ok(m),
                    false => Err(format!("expected a prime such as 65537, found {m}")),
                }
            });
            p.m = m.map_or(p.m, |m| m.into_inner());
        }
        PolicyConfig::BoundedLoads(p) => {
            let c = table.optional("c", |v| value::decimal(v, 1.01..=100.0));
            p.c = c.map_or(p.c, |c| c.into_inner());
        }
        PolicyConfig::Ewma(p) => duration(table, "tau", &mut p.tau, HOUR),
        PolicyConfig::Rent(p) => objects(table, &mut p.objects),
    }
    config
}

fn read_lard(p: &mut LardParameters, table: &mut Section<'_>) {
    number(table, "t_low", &mut p.t_low, 1, 65_535);
    number(table, "t_high", &mut p.t_high, 1, 65_535);
    ordered(Some(p.t_low), Some(p.t_high), table);
    objects(table, &mut p.objects);
}

fn read_xlard_r(p: &mut XlardRParameters, table: &mut Section<'_>) {
    number(table, "handoff_cost", &mut p.handoff_cost, 0, 100_000);
    number(table, "disk_cost", &mut p.disk_cost, 0, 100_000);
    number(table, "t_high", &mut p.t_high, 1, 65_535);
    duration(table, "k", &mut p.k, DAY);
    objects(table, &mut p.objects);
}

fn read_cache(p: &mut CacheParameters, table: &mut Section<'_>) {
    let memory = table.optional("memory_mib", |v| value::integer(v, 1..=1 << 24));
    p.memory_mib = memory.map_or(p.memory_mib, |m| m.into_inner());
    objects(table, &mut p.objects);
}

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

fn ordered(t_low: Option<u32>, t_high: Option<u32>, table: &Section<'_>) {
    if let (Some(low), Some(high)) = (t_low, t_high)
        && low > high
    {
        table.error(format!("`t_low` is {low}, which is above `t_high`, {high}"));
    }
}

fn objects(table: &mut Section<'_>, into: &mut usize) {
    let read = table.optional("objects", |v| value::integer(v, 1..=100_000_000));
    *into = read.map_or(*into, |n| n.into_inner() as usize);
}

fn number(table: &mut Section<'_>, key: &'static str, into: &mut u32, least: u64, most: u64) {
    let read = table.optional(key, |v| value::integer(v, least..=most));
    *into = read.map_or(*into, |n| n.into_inner() as u32);
}

fn optional_number(table: &mut Section<'_>, key: &'static str, most: u64) -> Option<u32> {
    let read = table.optional(key, |v| value::integer(v, 0..=most));
    read.map(|n| n.into_inner() as u32)
}

fn duration(table: &mut Section<'_>, key: &'static str, into: &mut Duration, most: Duration) {
    let range = Duration::from_millis(1)..=most;
    let read = table.optional(key, |v| value::duration(v, range));
    *into = read.map_or(*into, |d| d.into_inner());
}

/// `"source"`, or `{ cookie = "SRV" }`, `{ header = "X-Tenant" }`.
pub(super) fn read_stickiness(pool: &mut Section<'_>) -> Option<Stickiness> {
    const TITLE: &str = "`stickiness = { cookie = \"...\" }`";
    let mut table = match pool.word_or_table("stickiness", TITLE, value::stickiness)? {
        WordOrTable::Word(source) => return Some(source),
        WordOrTable::Table(table) => table,
    };
    let cookie = table.optional("cookie", value::token);
    let by = table.optional("value", value::cookie_value);
    let header = table.optional("header", value::token);
    if table.has("header") && table.has("value") {
        table.error("`value` says what a cookie's value is: a header's is hashed");
    }
    let both = table.has("cookie") && table.has("header");
    if both || !table.has("cookie") && !table.has("header") {
        table.error(
            "stickiness is by one thing: write `{ cookie = \"...\" }`, `{ header = \"...\" }`, \
             or \"source\" for the client's address",
        );
    }
    table.finish();
    match (cookie, header) {
        (Some(name), _) => Some(Stickiness::Cookie {
            name: name.into_inner(),
            value: by.map(|by| by.into_inner()).unwrap_or_default(),
        }),
        (None, Some(name)) => Some(Stickiness::Header(name.into_inner())),
        (None, None) => None,
    }
}

/// `"learnt"`, `"packets"`, or `{ static = 9, dynamic = 90 }`.
pub(super) fn read_costs(pool: &mut Section<'_>) -> Costs {
    const TITLE: &str = "`costs = { static = 9, dynamic = 90 }`";
    match pool.word_or_table("costs", TITLE, value::costs) {
        Some(WordOrTable::Word(costs)) => costs,
        Some(WordOrTable::Table(mut table)) => {
            let mut cost = |class: Class| {
                let read = table.optional(class.name(), |v| value::integer(v, 1..=1_000_000));
                read.map(|n| n.into_inner() as u32)
            };
            let set = Class::ALL.map(&mut cost);
            table.finish();
            // What is not said costs as a file does, and a file what it does in the paper.
            let file = set[0].unwrap_or(Costs::STATIC_PACKETS);
            Costs::Fixed(set.map(|packets| packets.unwrap_or(file)))
        }
        None => Costs::default(),
    }
}
