//! How fast products follow each other, from the readings of the clocks.
#![forbid(unsafe_code)]
use kernels_gpu::kernels::tensor_probe::{CHAINS, READINGS, TURN};
use serde::Serialize;

/// Schedulers of a multiprocessor, and tensor cores: warps are dealt to them in turn.
const SCHEDULERS: u32 = 4;

/// Multiplications and additions of one product.
const OPERATIONS: f64 = (2 * 16 * 8 * 16) as f64;

/// Whether a warp's products wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Chains {
    /// Each is the next one's addend.
    One,
    /// [`CHAINS`] chains in turn.
    SideBySide,
}

/// What a card is given to multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Load {
    /// One, or one for each multiprocessor.
    pub blocks: u32,
    /// Warps of a block.
    pub warps: u32,
    /// How a warp's products depend on each other.
    pub chains: Chains,
    /// Sixteen products of each warp.
    pub turns: u32,
}

impl Load {
    /// Products of a warp that do not wait for each other.
    #[must_use]
    pub fn side_by_side(&self) -> usize {
        match self.chains {
            Chains::One => 1,
            Chains::SideBySide => CHAINS,
        }
    }
}

/// How fast products followed each other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// What was multiplied.
    pub load: Load,
    /// Cycles from one product of a scheduler to its next: median over the blocks. The latency of a product where a
    /// scheduler has one warp of one chain.
    pub cycles_per_product: f64,
    /// The same of the slowest block.
    pub cycles_per_product_most: f64,
    /// Of all blocks, by the clock that the multiprocessors share.
    pub teraflops: f64,
    /// Cycles a microsecond: median over the blocks.
    pub megahertz: f64,
}

impl Rate {
    /// From the readings of each warp of each block: cycles at the start and at the end, nanoseconds likewise.
    ///
    /// # Panics
    /// If there are not as many as `load` has warps.
    #[must_use]
    pub fn of(load: Load, readings: &[u64]) -> Self {
        let warps: &[[u64; READINGS]] = readings.as_chunks().0;
        assert_eq!(warps.len(), (load.blocks * load.warps) as usize, "readings of every warp");
        let products = f64::from(load.turns) * TURN as f64;
        let of_scheduler = products * f64::from(load.warps.div_ceil(SCHEDULERS));
        let (mut cycles, mut megahertz) = (Vec::new(), Vec::new());
        for block in warps.chunks(load.warps as usize) {
            cycles.push(span(block, 0) / of_scheduler);
            megahertz.push(span(block, 0) * 1e3 / span(block, 2));
        }
        let operations = products * warps.len() as f64 * OPERATIONS;
        Self {
            load,
            cycles_per_product: median(&mut cycles),
            cycles_per_product_most: cycles.last().copied().unwrap_or(f64::NAN),
            // Operations a nanosecond are a thousandth of a teraflop.
            teraflops: operations / span(warps, 2) / 1e3,
            megahertz: median(&mut megahertz),
        }
    }
}

/// From the first start to the last end, of the pair of readings from `reading` on.
fn span(warps: &[[u64; READINGS]], reading: usize) -> f64 {
    let start = warps.iter().map(|warp| warp[reading]).min().unwrap_or(0);
    let end = warps.iter().map(|warp| warp[reading + 1]).max().unwrap_or(0);
    end.saturating_sub(start) as f64
}

/// Sorts.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_by_scheduler_and_clocks_by_block() {
        let load = Load { blocks: 2, warps: 8, chains: Chains::SideBySide, turns: 10 };
        // Two warps a scheduler, 160 products each: 3,200 cycles are 10 a product; the second block takes twice as long.
        let warp =
            |block: u64, warp: u64| [warp, warp.max(1) * (block + 1) * 3200 / 7 + warp, 500, 500 + 1600 * (block + 1)];
        let readings: Vec<u64> = (0..2).flat_map(|block| (0..8).flat_map(move |index| warp(block, index))).collect();
        let rate = Rate::of(load, &readings);
        let end = |block: u64| ((block + 1) * 3200 + 7) as f64;
        assert_eq!((rate.cycles_per_product, rate.cycles_per_product_most), (end(1) / 320.0, end(1) / 320.0));
        assert!((rate.megahertz - end(0) / 1.6).abs() < 1e-9);
        assert_eq!(rate.teraflops, 2.0 * 8.0 * 160.0 * 4096.0 / 3200.0 / 1e3);
    }

    #[test]
    fn one_warp_of_one_chain_is_a_latency() {
        let load = Load { blocks: 1, warps: 1, chains: Chains::One, turns: 1 };
        let rate = Rate::of(load, &[100, 100 + 16 * 33, 0, 264]);
        assert_eq!((rate.cycles_per_product, rate.megahertz, load.side_by_side()), (33.0, 2000.0, 1));
    }
}
