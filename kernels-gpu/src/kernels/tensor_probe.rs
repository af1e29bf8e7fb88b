//! What the tensor cores of a card compute, and how fast: products for a comparison with the emulation, and clocks. For
//! measurements.
//!
//! # Threads
//! - `gdn_tensor_probe_products`: a block of one warp takes one chain of products, each the addend of the next.
//! - `gdn_tensor_probe_dependent`, `gdn_tensor_probe_independent`: every warp of a block takes the same time of its own,
//!   over one chain or over [`CHAINS`] of them side by side. A launch may have fewer threads than [`THREADS`]: one warp
//!   for a latency, a multiple of four for so many on each of a multiprocessor's four schedulers.
//! - `gdn_tensor_probe_nothing`: leaves at once, for what a launch costs.
//!
//! # Memory
//! ```text
//!   a       [product][lane][4]   pairs of halves, as `cuda_std::tensor` says who holds what
//!   b       [product][lane][2]
//!   c       [chain][lane][4]
//!   out     [product][lane][4]   each link's sum; of a timed warp [warp][lane][4]
//!   clocks  [warp][4]            cycles at the start and the end, nanoseconds at the start and the end
//! ```
//!
//! # Why it is shaped so
//! The words for products are volatile to the compiler, so that a timed loop keeps them all and stays between the two
//! readings of the clock. No barrier stands before the first reading: the loops are long beside the distance of two
//! warps' starts.
use cuda_std::tensor::mma_16x8x16;
use cuda_std::thread::{block_idx_x, clock_cycles, global_nanoseconds, thread_idx_below};
use cuda_std::warp::WARP_SIZE;
use cuda_std::{Global, GlobalMut};

/// Lanes of a warp.
pub const LANES: usize = WARP_SIZE as usize;
/// The most threads of a timed block: four warps for each scheduler.
pub const THREADS: usize = 16 * LANES;
/// Registers of a, b and c that a lane holds.
pub const A_REGISTERS: usize = 4;
/// Of b.
pub const B_REGISTERS: usize = 2;
/// Of c and of the result.
pub const C_REGISTERS: usize = 4;
/// Independent chains of a warp in `gdn_tensor_probe_independent`: more than a product's latency has room for.
pub const CHAINS: usize = 8;
/// Products of a turn of a timed loop, whatever their chains.
pub const TURN: usize = 16;
/// Readings that a timed warp writes.
pub const READINGS: usize = 4;

cuda_std::arguments! {
    /// What the kernel takes.
    pub struct Args {
        /// Left factors; a timed warp has those of the first product.
        pub a: Global<u32>,
        /// Right factors, as for a.
        pub b: Global<u32>,
        /// What is added first; a timed warp has that of the first chain.
        pub c: Global<f32>,
        /// Every sum of a chain, or the last of a timed warp's chains added up.
        pub out: GlobalMut<f32>,
        /// A timed warp's readings; not touched otherwise.
        pub clocks: GlobalMut<u64>,
        /// Products of a chain, or turns of a timed loop.
        pub links: u32,
        /// Warps of a block.
        pub warps: u32,
    }
    for tensor_probe_kernel
}

tensor_probe_kernel! {
    kernel "tensor_probe", capability 80, blocks 1;
    entry gdn_tensor_probe_products = products, threads LANES, shared 0;
    entry gdn_tensor_probe_dependent = timed::<1>, threads THREADS, shared 0;
    entry gdn_tensor_probe_independent = timed::<CHAINS>, threads THREADS, shared 0;
    entry gdn_tensor_probe_nothing = nothing, threads THREADS, shared 0;
}

/// Places of the entries in the table.
pub const PRODUCTS: usize = 0;
/// `gdn_tensor_probe_dependent`.
pub const DEPENDENT: usize = 1;
/// `gdn_tensor_probe_independent`.
pub const INDEPENDENT: usize = 2;
/// `gdn_tensor_probe_nothing`.
pub const NOTHING: usize = 3;

/// A lane's registers of one product's factors.
///
/// # Safety
/// `product` lies inside a and b.
#[inline(always)]
unsafe fn factors(args: &Args, product: usize, lane: usize) -> ([u32; A_REGISTERS], [u32; B_REGISTERS]) {
    let (a, b) = ((product * LANES + lane) * A_REGISTERS, (product * LANES + lane) * B_REGISTERS);
    // SAFETY: bounds: by the caller. Owner: nobody writes a or b. Barrier: none is needed.
    unsafe { ([args.a.at(a), args.a.at(a + 1), args.a.at(a + 2), args.a.at(a + 3)], [args.b.at(b), args.b.at(b + 1)]) }
}

/// A lane's registers of one chain's first addend.
///
/// # Safety
/// `chain` lies inside c.
#[inline(always)]
unsafe fn addend(args: &Args, chain: usize, lane: usize) -> [f32; C_REGISTERS] {
    let c = (chain * LANES + lane) * C_REGISTERS;
    // SAFETY: bounds: by the caller. Owner: nobody writes c. Barrier: none is needed.
    unsafe { [args.c.at(c), args.c.at(c + 1), args.c.at(c + 2), args.c.at(c + 3)] }
}

/// Writes a lane's registers of one result.
///
/// # Safety
/// `row` lies inside out, and no other warp writes it.
#[inline(always)]
unsafe fn put(args: &Args, row: usize, lane: usize, result: [f32; C_REGISTERS]) {
    let mut index = 0;
    while index < C_REGISTERS {
        // SAFETY: bounds: by the caller. Owner: this lane, by the caller. Barrier: nobody reads it in this launch.
        unsafe { args.out.put((row * LANES + lane) * C_REGISTERS + index, result[index]) };
        index += 1;
    }
}

/// A chain of products.
///
/// # Safety
/// Called once by each of the 32 threads of each block. With the grid's blocks as chains, a, b and out hold `links`
/// products a chain and c one addend a chain, as the file says.
unsafe fn products(args: Args) {
    let (chain, lane) = (block_idx_x() as usize, thread_idx_below::<LANES>());
    // SAFETY: bounds: c has an addend for each block.
    let mut sum = unsafe { addend(&args, chain, lane) };
    for link in 0..args.links as usize {
        let product = chain * args.links as usize + link;
        // SAFETY: bounds: a, b and out have `links` products for each block. Owner: this block alone writes its own. All
        // 32 lanes run the same loop.
        unsafe {
            let (a, b) = factors(&args, product, lane);
            sum = mma_16x8x16(sum, a, b);
            put(&args, product, lane, sum);
        }
    }
}

/// Products of the same factors, between two readings of the clocks.
///
/// # Safety
/// Called once by each thread of each block of `warps` whole warps. a, b and c hold one product; out holds a result, and
/// clocks the readings, of each warp of the grid.
unsafe fn timed<const SIDE_BY_SIDE: usize>(args: Args) {
    let thread = thread_idx_below::<THREADS>();
    let lane = thread % LANES;
    let warp = block_idx_x() as usize * args.warps as usize + thread / LANES;
    // SAFETY: bounds: one product is there.
    let ((a, b), c) = unsafe { (factors(&args, 0, lane), addend(&args, 0, lane)) };
    let mut sums = [c; SIDE_BY_SIDE];
    let (cycles, nanoseconds) = (clock_cycles(), global_nanoseconds());
    for _ in 0..args.links {
        let mut product = 0;
        while product < TURN {
            // SAFETY: all 32 lanes of the warp run the same loop.
            sums[product % SIDE_BY_SIDE] = unsafe { mma_16x8x16(sums[product % SIDE_BY_SIDE], a, b) };
            product += 1;
        }
    }
    let readings = [cycles, clock_cycles(), nanoseconds, global_nanoseconds()];
    let mut total = [0.0; C_REGISTERS];
    for sum in sums {
        let mut index = 0;
        while index < C_REGISTERS {
            total[index] += sum[index];
            index += 1;
        }
    }
    // SAFETY: bounds: out has a result for each warp. Owner: this warp.
    unsafe { put(&args, warp, lane, total) };
    if lane == 0 {
        let mut reading = 0;
        while reading < READINGS {
            // SAFETY: bounds: clocks has the readings of each warp. Owner: its lane 0. Barrier: nobody reads them in this
            // launch.
            unsafe { args.clocks.put(warp * READINGS + reading, readings[reading]) };
            reading += 1;
        }
    }
}

/// Leaves at once.
///
/// # Safety
/// None is needed; the signature is that of every entry.
unsafe fn nothing(_: Args) {}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_std::emulator::{self, Launch, Memory};
    use cuda_std::float::pack_f16x2;

    /// What `probe` makes of products of ones with addends of 0.5: out and clocks.
    fn run(probe: usize, blocks: u32, warps: u32, links: u32) -> (Vec<f32>, Vec<u64>) {
        let rows = blocks as usize * warps.max(links) as usize * LANES;
        let a = vec![pack_f16x2(1.0, 1.0); rows * A_REGISTERS];
        let b = vec![pack_f16x2(1.0, 1.0); rows * B_REGISTERS];
        let c = vec![0.5; rows * C_REGISTERS];
        let mut out = vec![f32::NAN; rows * C_REGISTERS];
        let mut clocks = vec![0; (blocks * warps) as usize * READINGS];
        let mut memory = Memory::new();
        let args = Args {
            a: memory.read_only(&a),
            b: memory.read_only(&b),
            c: memory.read_only(&c),
            out: memory.read_write(&mut out),
            clocks: memory.read_write(&mut clocks),
            links,
            warps,
        };
        let launch = Launch { grid: [blocks, 1], threads: warps * WARP_SIZE, shared_bytes: 0, order: 1 };
        // SAFETY: types: the entry takes `Args`. Lengths: `memory` has them. Lifetime: it borrows the buffers.
        unsafe { emulator::run(&launch, &memory, KERNEL.entries[probe].body, args) }.unwrap();
        (out, clocks)
    }

    #[test]
    fn every_link_of_a_chain_is_written() {
        let (out, clocks) = run(PRODUCTS, 2, 1, 3);
        for (product, sums) in out.chunks(LANES * C_REGISTERS).enumerate() {
            assert!(sums.iter().all(|&sum| sum == 0.5 + 16.0 * (product % 3 + 1) as f32), "{product}: {sums:?}");
        }
        assert_eq!(clocks, [0; 2 * READINGS]);
    }

    #[test]
    fn timed_warps_multiply_so_often_and_read_the_clocks_before_and_after() {
        for (probe, chains) in [(DEPENDENT, 1), (INDEPENDENT, CHAINS)] {
            let (out, clocks) = run(probe, 2, 3, 2);
            let total = 0.5 * chains as f32 + 16.0 * (2 * TURN) as f32;
            assert!(out[..6 * LANES * C_REGISTERS].iter().all(|&sum| sum == total), "{total}: {out:?}");
            for readings in clocks.chunks(READINGS) {
                assert!(readings[0] < readings[1] && readings[2] < readings[3], "{readings:?}");
            }
        }
    }

    #[test]
    fn nothing_is_nothing() {
        let (out, clocks) = run(NOTHING, 1, 2, 1);
        assert!(out.iter().all(|sum| sum.is_nan()) && clocks.iter().all(|&reading| reading == 0));
    }

    #[test]
    fn places_are_those_of_the_entries() {
        for (place, name) in
            [(PRODUCTS, "products"), (DEPENDENT, "dependent"), (INDEPENDENT, "independent"), (NOTHING, "nothing")]
        {
            assert_eq!(KERNEL.entries[place].symbol, format!("gdn_tensor_probe_{name}"));
        }
    }
}
