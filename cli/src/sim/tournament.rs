//! `trapeze sim tournament`: all policies on everything, relative to the best of each.

use std::fmt;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use serde::Serialize;
use trapeze_core::config::PolicyKind;
use trapeze_sim::tournament::{Round, Standing, standings};
use trapeze_sim::workload::{NAMES, Pace};
use trapeze_sim::{Bound, Limit, Run};

use super::setup;
use crate::output::Output;

/// All policies on all workloads and traces: how far is each from the best?
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Workloads: zipf, rice, ibm, surge, webbench, hot, mix, all, or none
    #[arg(
        short,
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "all"
    )]
    workload: Vec<String>,
    /// Recorded traces besides; each with memory for a tenth and for a fortieth of it
    #[arg(short, long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Policies by their names in the configuration, or all
    #[arg(
        short,
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "all"
    )]
    policies: Vec<String>,
    /// How many backends
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = setup::count(setup::BACKENDS_MAX))]
    backends: u32,
    /// Of all randomness
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Threads [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = setup::count(setup::THREADS_MAX))]
    threads: Option<u32>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Report {
    rounds: Vec<String>,
    /// What no policy can exceed, of the best policy's throughput; none where requests in
    /// queues blur it so much that the best has exceeded it.
    bound_of_best: Vec<Option<f64>>,
    bounds: Vec<Option<Bound>>,
    standings: Vec<Standing>,
}

/// Runs it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let entrants = setup::entrants(&args.policies)?;
    let mut rounds = synthetic(args)?;
    for path in &args.trace {
        let trace = setup::open(path, None)?;
        let name = path
            .file_stem()
            .map_or_else(String::new, |n| n.to_string_lossy().into());
        let name = name.split('.').next().unwrap_or_default().to_owned();
        let (requests, backends) = (trace.records.len() as u64, args.backends as usize);
        let file = path.display().to_string();
        setup::warn_of_chance(&file, requests, Pace::Admission.users(backends));
        rounds.extend(Round::recorded(&name, &trace, backends));
    }
    ensure!(
        !rounds.is_empty(),
        "nothing to run: name workloads or a trace, such as -w zipf or -t access.log"
    );
    let runs: Vec<Run<'_>> = (rounds.iter())
        .flat_map(|round| entrants.iter().map(|entrant| round.run(entrant, args.seed)))
        .collect();
    let outcomes = setup::go(&runs, setup::threads(args.threads));
    let bounds: Vec<Option<Bound>> = (runs.chunks(entrants.len()))
        .map(|round| Bound::of(&round[0]))
        .collect();
    let best = outcomes.chunks(entrants.len()).map(|round| {
        round
            .iter()
            .fold(1e-9, |b: f64, o| b.max(o.requests_per_second))
    });
    args.output.one(&Report {
        rounds: rounds.iter().map(|round| round.name.clone()).collect(),
        bound_of_best: (bounds.iter().zip(best))
            .map(|(bound, best)| Some(bound.as_ref()?.requests_per_second / best))
            .map(|of_best| of_best.filter(|&of_best| of_best >= 1.0))
            .collect(),
        bounds,
        standings: standings(&entrants, &outcomes),
    })
}

fn synthetic(args: &Args) -> anyhow::Result<Vec<Round>> {
    let has = |name: &str| args.workload.iter().any(|word| word == name);
    let known = |name: &String| {
        ["all", "none"].contains(&name.as_str()) || NAMES.iter().any(|(known, _)| known == name)
    };
    if let Some(unknown) = args.workload.iter().find(|name| !known(name)) {
        let known = NAMES.map(|(name, _)| name).join(", ");
        bail!("no workload `{unknown}`; there are: {known}, all, none");
    }
    let mut rounds = Round::synthetic(args.backends as usize, args.seed);
    rounds.retain(|round| has("all") || has(&round.name));
    Ok(rounds)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "throughput over that of the best")?;
        let width = (self.standings.iter())
            .map(|s| s.policy.len())
            .max()
            .unwrap_or(0);
        write!(f, "  {:width$}  worst   mean", "policy")?;
        for round in &self.rounds {
            write!(f, "  {round:>8}")?;
        }
        writeln!(f)?;
        for standing in &self.standings {
            write!(
                f,
                "  {:width$}  {:.3}  {:.3}",
                standing.policy, standing.worst, standing.mean
            )?;
            for (share, round) in standing.of_best.iter().zip(&self.rounds) {
                write!(f, "  {share:>width$.3}", width = round.len().max(8))?;
            }
            writeln!(f)?;
        }
        write!(f, "  {:width$}               ", "no policy above")?;
        for (bound, round) in self.bound_of_best.iter().zip(&self.rounds) {
            let cell = bound.map_or_else(|| "-".to_owned(), |bound| format!("{bound:.3}"));
            write!(f, "  {cell:>width$}", width = round.len().max(8))?;
        }
        writeln!(f)?;
        write!(f, "  {:width$}               ", "limited by")?;
        for (bound, round) in self.bounds.iter().zip(&self.rounds) {
            let cell = bound.as_ref().map_or("-", |bound| limit(bound.limit));
            write!(f, "  {cell:>width$}", width = round.len().max(8))?;
        }
        writeln!(f)?;
        self.over_lard_r(f, width)?;
        let blurred =
            |(of_best, bound): (&Option<f64>, &Option<Bound>)| of_best.is_none() && bound.is_some();
        if self.bound_of_best.iter().zip(&self.bounds).any(blurred) {
            writeln!(
                f,
                "\n-: too few requests to tell; those in queues when counting begins and ends are \
                 more than what is left to gain"
            )?;
        }
        Ok(())
    }
}

impl Report {
    /// The published policy that is to be exceeded: by how much the first one does, and
    /// by how much anyone could.
    fn over_lard_r(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        let lard_r = PolicyKind::LardR.name();
        let Some(lard_r) = self.standings.iter().find(|s| s.policy == lard_r) else {
            return Ok(());
        };
        let first = &self.standings[0];
        let of_best = first.of_best.iter().copied().map(Some).collect();
        writeln!(f, "\nover lard-r, in per cent")?;
        for (name, of_best) in [
            (first.policy.as_str(), &of_best),
            ("at most", &self.bound_of_best),
        ] {
            write!(f, "  {name:width$}               ")?;
            for ((of_best, lard_r), round) in of_best.iter().zip(&lard_r.of_best).zip(&self.rounds)
            {
                let cell = of_best.map_or_else(
                    || "-".to_owned(),
                    |of_best| format!("{:+.1}", (of_best / lard_r - 1.0) * 100.0),
                );
                write!(f, "  {cell:>width$}", width = round.len().max(8))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn limit(limit: Limit) -> &'static str {
    match limit {
        Limit::Dispatchers => "front",
        Limit::Processors => "CPUs",
        Limit::Disks => "disks",
        Limit::Links => "links",
        Limit::ClientLinks | Limit::ClientProcessors => "clients",
        Limit::Users => "users",
    }
}
