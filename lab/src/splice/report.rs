//! The results as a table for a terminal.

use std::fmt::{self, Display, Formatter};

use super::results::{CaseResults, Results};
use super::transfers::Transfers;

/// A line for each case, published and measured side by side.
pub struct Table<'a>(pub &'a Results);

impl Display for Table<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Table(results) = self;
        let machine = &results.machine;
        let rate = match results.rate {
            Some(rate) => format!("links of {} Mbit/s", rate as f64 / 1e6),
            None => "links without a limit".to_owned(),
        };
        writeln!(
            f,
            "Linux {}, {} cores of {}; trapeze {}\n\
             {} transfers at once, {rate}; medians of {} rounds\n\
             total: from the first one's begin to the last one's end, and of what it is compared \
             with\n(C-S, or the same without a death), published [SPLICE06 §7] and measured\n\
             pauses: the longest time in which a transfer did not get on, 99 of 100 less than \
             that; in\nwhich none did\n",
            machine.kernel,
            machine.cores,
            machine.cpu,
            machine.trapeze,
            results.transfers,
            results.rounds,
        )?;
        writeln!(
            f,
            "{:<48}{:>16}{:>9}{:>9}{:>8}   {:<21}{:<18}",
            "", "each, s", "total, s", "Mbit/s", "CPU", "total of base", "pauses, ms"
        )?;
        writeln!(
            f,
            "{:<48}{:>16}{:>9}{:>9}{:>8}   {:<11}{:<10}{:<9}{:<9}",
            "", "(deviation)", "", "", "", "published", "measured", "one", "all"
        )?;
        for case in &results.cases {
            line(f, results, case)?;
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

fn line(f: &mut Formatter<'_>, results: &Results, case: &CaseResults) -> fmt::Result {
    let base = results.case(case.case.base());
    let of = |figure: fn(&Transfers) -> f64| case.of(figure);
    let (Some(mean), Some(deviation), Some(total)) = (
        of(Transfers::mean_s),
        of(Transfers::deviation_s),
        of(|transfers| transfers.total_s),
    ) else {
        return Ok(());
    };
    let is_base = case.case.base() == case.case;
    let published = (case.published.zip(base.and_then(|base| base.published)))
        .filter(|_| !is_base)
        .map(|(own, base)| own.total_s / base.total_s);
    let measured = (base.and_then(|base| base.of(|transfers| transfers.total_s)))
        .filter(|_| !is_base)
        .map(|base| total / base);
    writeln!(
        f,
        "{:<48}{:>16}{:>9.2}{:>9.0}{:>7.0}%   {:<11}{:<10}{:<9.0}{:<9.0}",
        case.case.name(),
        format!("{mean:.2} ({deviation:.2})"),
        total,
        of(|transfers| transfers.mbps).unwrap_or_default(),
        case.busy(results.machine.cores).unwrap_or_default() * 100.0,
        ratio(published),
        ratio(measured),
        of(Transfers::pause_p99_ms).unwrap_or_default(),
        of(|transfers| transfers.pause_of_all_ms).unwrap_or_default(),
    )
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"))
}
