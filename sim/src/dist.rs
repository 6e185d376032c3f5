//! The distributions that workloads draw from, by inversion where there is one.
//! All randomness of the simulator is a [`Dice`] with a seed.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Seeded randomness: the same seed, the same run.
#[derive(Clone, Debug)]
pub struct Dice(SmallRng);

impl Dice {
    /// Dice for one purpose: streams with different purposes are independent.
    pub fn new(seed: u64, purpose: u64) -> Self {
        Dice(SmallRng::seed_from_u64(
            seed ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        ))
    }

    /// Uniform in (0, 1), never an end.
    pub fn unit(&mut self) -> f64 {
        ((self.0.random::<u64>() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Uniform in 0..below; `below` is above zero.
    pub fn below(&mut self, below: usize) -> usize {
        self.0.random_range(0..below)
    }

    /// True with that probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Exponential with that mean.
    #[cfg(test)]
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }

    /// Pareto: `P(X > x) = (k/x)^alpha` from `k` on.
    pub fn pareto(&mut self, k: f64, alpha: f64) -> f64 {
        k / self.unit().powf(1.0 / alpha)
    }

    /// Weibull: `P(X > x) = exp(-(x/scale)^shape)`.
    pub fn weibull(&mut self, scale: f64, shape: f64) -> f64 {
        scale * (-self.unit().ln()).powf(1.0 / shape)
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Lognormal: the logarithm has mean `mu` and deviation `sigma`.
    pub fn lognormal(&mut self, mu: f64, sigma: f64) -> f64 {
        (mu + sigma * self.normal()).exp()
    }

    /// A random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// Draws an index with given weights in constant time: the alias method
/// (M. Vose, "A linear algorithm for generating random numbers with a given
/// distribution", IEEE TSE 17(9), 1991).
#[derive(Clone, Debug)]
pub struct Weighted {
    columns: Vec<Column>,
}

#[derive(Clone, Copy, Debug)]
struct Column {
    keep: f64,
    alias: u32,
}

impl Weighted {
    /// Weights are not negative, and one is above zero.
    pub fn new(weights: &[f64]) -> Self {
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        let mut share: Vec<f64> = weights.iter().map(|w| w / mean).collect();
        let (mut poor, mut rich): (Vec<usize>, Vec<usize>) =
            (0..weights.len()).partition(|&i| share[i] < 1.0);
        let mut columns = vec![
            Column {
                keep: 1.0,
                alias: 0
            };
            weights.len()
        ];
        while let (Some(small), Some(&large)) = (poor.pop(), rich.last()) {
            columns[small] = Column {
                keep: share[small],
                alias: large as u32,
            };
            share[large] -= 1.0 - share[small];
            if share[large] < 1.0 {
                poor.push(rich.pop().expect("it is the last"));
            }
        }
        Weighted { columns }
    }

    /// Zipf: the weight of rank i (from 1) is `i^-exponent`.
    pub fn zipf(ranks: usize, exponent: f64) -> Self {
        let weights: Vec<f64> = (1..=ranks).map(|i| (i as f64).powf(-exponent)).collect();
        Self::new(&weights)
    }

    /// An index.
    pub fn draw(&self, dice: &mut Dice) -> usize {
        let at = dice.below(self.columns.len());
        let column = self.columns[at];
        match dice.unit() < column.keep {
            true => at,
            false => column.alias as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(draws: usize, mut draw: impl FnMut() -> f64) -> f64 {
        (0..draws).map(|_| draw()).sum::<f64>() / draws as f64
    }

    fn near(measured: f64, theory: f64, relative: f64) {
        let off = (measured / theory - 1.0).abs();
        assert!(off < relative, "{measured} is not near {theory}");
    }

    #[test]
    fn means_are_those_of_theory() {
        let mut dice = Dice::new(1, 0);
        near(mean(200_000, || dice.exponential(3.0)), 3.0, 0.02);
        // k alpha/(alpha-1)
        near(mean(500_000, || dice.pareto(1.0, 2.43)), 2.43 / 1.43, 0.02);
        // exp(mu + sigma^2/2)
        let theory = (1.5f64 + 0.32).exp();
        near(mean(200_000, || dice.lognormal(1.5, 0.8)), theory, 0.02);
        // scale Gamma(1 + 1/2) = scale sqrt(pi)/2
        let theory = 2.0 * std::f64::consts::PI.sqrt() / 2.0;
        near(mean(200_000, || dice.weibull(2.0, 2.0)), theory, 0.02);
    }

    #[test]
    fn the_tail_of_pareto_is_a_power() {
        let mut dice = Dice::new(2, 0);
        let draws: Vec<f64> = (0..200_000).map(|_| dice.pareto(133e3, 1.1)).collect();
        for x in [200e3, 1e6, 5e6] {
            let above = draws.iter().filter(|&&d| d > x).count() as f64 / 200_000.0;
            near(above, (133e3 / x).powf(1.1), 0.1);
        }
    }

    #[test]
    fn zipf_gives_each_rank_its_share() {
        let mut dice = Dice::new(3, 0);
        let zipf = Weighted::zipf(1000, 1.0);
        let mut counts = vec![0u32; 1000];
        for _ in 0..1_000_000 {
            counts[zipf.draw(&mut dice)] += 1;
        }
        let harmonic: f64 = (1..=1000).map(|i| 1.0 / f64::from(i)).sum();
        for rank in [1, 2, 10, 100] {
            let theory = 1e6 / (f64::from(rank) * harmonic);
            near(f64::from(counts[rank as usize - 1]), theory, 0.1);
        }
    }

    #[test]
    fn one_seed_is_one_sequence_and_purposes_differ() {
        let draw = |seed, purpose| Dice::new(seed, purpose).unit();
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }
}
