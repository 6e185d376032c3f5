//! The results as a table for a terminal.

use std::fmt::{self, Display, Formatter};

use super::published::Gain;
use super::results::{Results, Way};
use super::visits::Visits;
use crate::figures::grouped;

/// A line for each point, published and measured side by side.
pub struct Table<'a>(pub &'a Results);

impl Display for Table<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Table(results) = self;
        let (machine, settings) = (&results.machine, &results.settings);
        writeln!(
            f,
            "Linux {}, {} cores of {}; trapeze {}\n\
             {} connections at a time, all requests of one sent at once; every request at another \
             server\nmedians of {} rounds of {} s; gains of the half-pipe over draining, published \
             [SPLITSTACK02 §V] and measured\n",
            machine.kernel,
            machine.cores,
            machine.cpu,
            machine.trapeze,
            settings.connections,
            settings.rounds,
            settings.seconds
        )?;
        writeln!(
            f,
            "{:<13}{:<10}{:>18}{:>24}   {:<20}{:<20}",
            "", "", "req/s", "ms a connection", "throughput", "lifetime"
        )?;
        writeln!(
            f,
            "{:<13}{:<10}{:>9}{:>9}{:>12}{:>12}   {:<10}{:<10}{:<10}{:<10}",
            "",
            "",
            "drained",
            "half",
            "drained",
            "half",
            "published",
            "measured",
            "published",
            "measured"
        )?;
        for point in &results.points {
            let (Some(gain), Some(drained), Some(half)) = (
                point.gain(),
                point.of(Way::Drained, Visits::rate),
                point.of(Way::HalfPipe, Visits::rate),
            ) else {
                continue;
            };
            let lifetime = |way| point.of(way, Visits::lifetime_ms).unwrap_or_default();
            let published = |of: fn(Gain) -> f64| point.published.map(of);
            writeln!(
                f,
                "{:<13}{:<10}{:>9}{:>9}{:>12.1}{:>12.1}   {:<10}{:<10}{:<10}{:<10}",
                point.network.name(),
                point.point.name(),
                grouped(drained),
                grouped(half),
                lifetime(Way::Drained),
                lifetime(Way::HalfPipe),
                share(published(|gain| gain.throughput)),
                share(Some(gain.throughput)),
                share(published(|gain| -gain.lifetime)),
                share(Some(-gain.lifetime)),
            )?;
        }
        if !machine.optimised {
            writeln!(f, "\nwarning: this trapeze was built without --release")?;
        }
        for failure in &results.failures {
            writeln!(f, "FAILED: {failure}")?;
        }
        Ok(())
    }
}

fn share(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| format!("{:+.0} %", share * 100.0))
}
