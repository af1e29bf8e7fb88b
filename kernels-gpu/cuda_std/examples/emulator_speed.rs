//! How fast the emulator is: `cargo run -p cuda_std --example emulator_speed`.
use std::time::Instant;

use cuda_std::emulator::{Launch, Memory, run};
use cuda_std::float::fma;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::warp::warp_shuffle_xor;
use cuda_std::{Global, GlobalMut, Tile};

const TURNS: usize = 2_000;

#[derive(Clone, Copy)]
struct Args {
    x: Global<f32>,
    y: GlobalMut<f32>,
}

/// 18 shuffles, 20 accesses and 2 barriers a turn.
unsafe fn body(args: Args) {
    let thread = thread_idx_x() as usize;
    let shared = dynamic_shared_mem::<Tile<1024>>();
    let mut sum = 0.0;
    for turn in 0..TURNS {
        // SAFETY: bounds: 128 threads of 8 floats; owner: 4 a thread; barrier: as marked.
        unsafe {
            for i in 0..4 {
                Tile::put(shared, thread * 4 + i, args.x.at(thread * 4 + i) + sum);
            }
            sync_threads(); // what was put may be read
            for i in 0..5 {
                sum = fma(Tile::quad(shared, (thread + i * 8) % 128 * 4)[i % 4], 0.01, sum);
            }
            for round in 0..18 {
                sum = 0.5 * (sum + warp_shuffle_xor(sum, 1 << (round % 5)));
            }
            for i in 0..5 {
                sum = fma(Tile::at(shared, (thread * 4 + i * 32) % 512), 0.01, sum);
            }
            args.y.put(thread + (turn % 2) * 128, sum);
            args.y.put(thread + 256 + (turn % 2) * 128, sum);
            sync_threads(); // all have read
        }
    }
}

fn main() {
    let x = vec![1.0_f32; 512];
    let mut y = vec![0.0_f32; 512];
    let mut memory = Memory::new();
    let args = Args { x: memory.read_only(&x), y: memory.read_write(&mut y) };
    // One block, since each runs on one core.
    let launch = Launch { grid: [1, 1], threads: 128, shared_bytes: 4096, order: 0 };
    for _ in 0..3 {
        let start = Instant::now();
        // SAFETY: the kernel touches memory through the words alone.
        unsafe { run(&launch, &memory, body, args) }.expect("the kernel is right");
        let words = (TURNS * 128 * (18 + 20)) as f64;
        println!("{:.1} million words a second and core", words / start.elapsed().as_secs_f64() / 1e6);
    }
}
