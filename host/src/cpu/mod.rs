//! The recurrence on the CPU, token by token in FP32.
//!
//! Columns of a head's state never meet, so the work is cut by value head and, where there are more threads than heads,
//! by column. Each column's sums run over its key rows in order whatever the cut is: outputs have the same bits for any
//! number of threads, and for one call or several that hand the state on.
//!
//! ```text
//! run      checks, cuts into parts, spreads them over the threads
//!   part     one head's columns: state to tiles, segment after segment, tiles to state
//!     segment  the inputs of a few tokens, side by side
//!     tile     the sums, in vectors of whatever this processor has
//!   split    disjoint columns of the output and the state
//! ```
#![forbid(unsafe_code)]

mod part;
mod segment;
mod split;
#[cfg(test)]
mod tests;
mod tile;

use crate::call::{Call, Gates, State, Strides};
use crate::error::Result;
use crate::heads::HEAD_DIM;
use part::{Inputs, Part, Scratch};
use rayon::prelude::*;

/// Parts for each thread: with fewer, threads that finish early would wait for the others.
const PARTS_PER_THREAD: usize = 3;
/// Heads times tokens worth a thread's time to fetch them; fewer stay together.
const LEAST_WORK: usize = 4;

/// Runs `call` on the threads of the current rayon pool.
///
/// Everything is FP32: S = e^g S, d = beta (v - S^T k), S += k d^T, o = scale * S^T q. A gate of -inf forgets the state;
/// NaN and infinities spread as IEEE 754 says, so a state that holds one is not forgotten: 0 times it is NaN. With no
/// tokens the state keeps its bits.
///
/// # Errors
/// Those of [`Call::validate`]; nothing has been written then.
pub fn run(call: Call<'_>) -> Result<()> {
    call.validate()?;
    if call.tokens == 0 {
        return Ok(());
    }
    let Call { heads, tokens, q, k, v, gates: Gates::Log { g, beta }, out, state, scale } = call;
    let inputs = Inputs { heads, tokens, q, k, v, g, beta, scale };
    let width = part_width(heads.num_v_heads, rayon::current_num_threads());
    let outs = split::columns(out.data, tokens, heads.num_v_heads, out.strides, width);
    let parts: Vec<Part<'_>> = match state {
        Some(State { data, layout }) => {
            let strides = Strides { token: layout.row, head: layout.head };
            let states = split::columns(data, HEAD_DIM, heads.num_v_heads, strides, width);
            outs.into_iter().zip(states).map(|(out, state)| Part { out, state: Some(state) }).collect()
        }
        None => outs.into_iter().map(|out| Part { out, state: None }).collect(),
    };
    let together = (LEAST_WORK / tokens).max(1);
    let arch = pulp::Arch::new();
    parts
        .into_par_iter()
        .with_min_len(together)
        .for_each_init(|| Scratch::new(width, tokens), |scratch, part| part.run(&inputs, scratch, arch));
    Ok(())
}

/// Columns of a part: whole heads where they keep `threads` busy, else half or a quarter of one.
fn part_width(heads: usize, threads: usize) -> usize {
    let parts = (threads * PARTS_PER_THREAD).div_ceil(heads).next_power_of_two();
    if threads == 1 { HEAD_DIM } else { (HEAD_DIM / parts).max(tile::COLUMNS) }
}
