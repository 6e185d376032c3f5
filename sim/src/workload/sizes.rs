//! File sizes as SURGE has them, and which file is how popular (P. Barford,
//! M. Crovella, "Generating representative web workloads for network and server
//! performance evaluation", SIGMETRICS 1998, table 2): a lognormal body, a Pareto
//! tail, and requested sizes that are Pareto too, which makes the popular small.

use crate::dist::Dice;

const BODY_MU: f64 = 9.357;
const BODY_SIGMA: f64 = 1.318;
const TAIL_FROM: f64 = 133e3;
const TAIL_ALPHA: f64 = 1.1;
/// Share of files in the body.
const BODY: f64 = 0.93;
const REQUESTED_FROM: f64 = 1000.0;

/// So many sizes, the most popular file's first, none above `largest`.
pub(super) fn surge(files: usize, largest: f64, dice: &mut Dice) -> Vec<u64> {
    let mut sizes: Vec<u64> = (0..files).map(|_| size(largest, dice) as u64).collect();
    sizes.sort_unstable();
    // The share of requests that each size should have: that of the sizes nearer to
    // it than to its neighbours.
    let below = |bytes: f64| 1.0 - (REQUESTED_FROM / bytes).min(1.0);
    let share = |i: usize| {
        let edge = |j: usize| (sizes[j] + sizes[j + 1]) as f64 / 2.0;
        let low = if i == 0 { 0.0 } else { below(edge(i - 1)) };
        let high = if i + 1 == files { 1.0 } else { below(edge(i)) };
        high - low
    };
    let mut order: Vec<usize> = (0..files).collect();
    order.sort_by(|&a, &b| share(b).total_cmp(&share(a)).then(a.cmp(&b)));
    order.into_iter().map(|i| sizes[i]).collect()
}

/// The same in an order that is looser: each rank times e^N(0,1), so that popular files
/// are the smaller ones more often than not. Strictly in order, as SURGE has them, no
/// curve of popularity has the coverage that LARD98 gives of its traces; without any
/// order a request's mean size is 40 kB.
pub(super) fn loosely(sizes: Vec<u64>, dice: &mut Dice) -> Vec<u64> {
    let mut ranked: Vec<(f64, u64)> = (1..)
        .zip(sizes)
        .map(|(rank, size)| (f64::from(rank) * dice.lognormal(0.0, 1.0), size))
        .collect();
    ranked.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    ranked.into_iter().map(|(_, size)| size).collect()
}

fn size(largest: f64, dice: &mut Dice) -> f64 {
    loop {
        let (size, fits) = match dice.chance(BODY) {
            true => {
                let size = dice.lognormal(BODY_MU, BODY_SIGMA);
                (size, size < TAIL_FROM)
            }
            false => {
                let size = dice.pareto(TAIL_FROM, TAIL_ALPHA);
                (size, size < largest)
            }
        };
        if fits {
            return size.max(1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::Weighted;

    #[test]
    fn body_and_tail_have_their_shares() {
        let mut dice = Dice::new(1, 0);
        let sizes = surge(100_000, 4e6, &mut dice);
        let share =
            |below: f64| sizes.iter().filter(|&&s| (s as f64) < below).count() as f64 / 100_000.0;
        assert!((share(133e3) - 0.93).abs() < 0.01);
        // The lognormal's median, within the body (cut at 133 kB: 95 % of it).
        let median = share(BODY_MU.exp()) / 0.93;
        assert!((median - 0.5 / 0.955).abs() < 0.02, "{median}");
    }

    /// LACP03's clients requested 8.4 to 8.8 kB on average; a Pareto from 1 kB to
    /// 4 MB has 8.3 kB.
    #[test]
    fn requested_sizes_are_those_of_surge() {
        let means: Vec<f64> = (0..20)
            .map(|seed| {
                let mut dice = Dice::new(seed, 0);
                let sizes = surge(1000, 4e6, &mut dice);
                let zipf = Weighted::zipf(1000, 1.0);
                (0..20_000)
                    .map(|_| sizes[zipf.draw(&mut dice)] as f64)
                    .sum::<f64>()
                    / 20_000.0
            })
            .collect();
        let mean = means.iter().sum::<f64>() / means.len() as f64;
        assert!((5e3..13e3).contains(&mean), "{mean}");
    }
}
