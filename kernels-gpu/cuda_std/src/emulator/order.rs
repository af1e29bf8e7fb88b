//! In which order the threads of a block run.
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::collective::Warp;

/// Seed 0: ascending. Any other: warps, and lanes in their warp, shuffled at every block barrier.
#[derive(Debug)]
pub(super) struct Order {
    warps: Vec<usize>,
    random: Option<SmallRng>,
}

impl Order {
    /// The order of a block; two blocks of one launch have different ones.
    pub fn new(seed: u64, block: usize, warps: usize) -> Self {
        let random = (seed != 0).then(|| SmallRng::seed_from_u64(seed.rotate_left(32) ^ block as u64));
        Self { warps: (0..warps).collect(), random }
    }

    /// Orders the next interval, and returns the order of the warps.
    pub fn next(&mut self, warps: &mut [Warp]) -> &[usize] {
        if let Some(random) = &mut self.random {
            self.warps.shuffle(random);
            for warp in warps {
                warp.order.shuffle(random);
            }
        }
        &self.warps
    }
}
