//! `trapeze sim trace`: what a recorded trace holds, and how it was read.

use std::fmt;
use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;
use trapeze_sim::trace::{LeftOut, Profile, Reading, Trace};

use super::setup;
use crate::amount;
use crate::output::Output;

/// What recorded traces hold: requests, files, locality, and lines left out
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Common Log Format or CSV (t,url,bytes,status,method), also .gz
    #[arg(required = true, value_name = "FILE")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Report {
    file: String,
    reading: Reading,
    profile: Profile,
}

/// Reads them.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for path in &args.traces {
        let file = path.display().to_string();
        let trace = Trace::open(path, u64::MAX).with_context(|| file.clone())?;
        reports.push(Report {
            file,
            profile: trace.profile(),
            reading: trace.reading,
        });
    }
    args.output.each(&reports)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reading, profile) = (&self.reading, &self.profile);
        writeln!(
            f,
            "{}: {}, {} lines",
            self.file, reading.format, reading.lines
        )?;
        writeln!(
            f,
            "  {} requests for {} URLs in {:.0} s; {} for dynamic ones",
            profile.requests, profile.objects, profile.seconds, profile.dynamic_requests
        )?;
        writeln!(
            f,
            "  {} of files, {} sent; 90, 99 and 100 % of file requests need {}, {} and {} of memory",
            amount::bytes(profile.total_bytes),
            amount::bytes(profile.sent_bytes),
            amount::bytes(profile.covering_bytes[0]),
            amount::bytes(profile.covering_bytes[1]),
            amount::bytes(profile.covering_bytes[2]),
        )?;
        if reading.out_of_order > 0 {
            writeln!(f, "  {} requests were out of order", reading.out_of_order)?;
        }
        if reading.untimed > 0 {
            writeln!(
                f,
                "  {} requests without a time have that of the line above",
                reading.untimed
            )?;
        }
        if reading.trailing {
            writeln!(f, "  {}", setup::TRAILING)?;
        }
        if reading.malformed > 0 {
            writeln!(f, "  {} lines left out:", reading.malformed)?;
            for LeftOut {
                reason,
                lines,
                first_line,
                text,
            } in &reading.left_out
            {
                writeln!(f, "    {lines}: {reason}, first line {first_line}: {text}")?;
            }
        }
        Ok(())
    }
}
