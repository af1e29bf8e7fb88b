//! Chunked Gated DeltaNet on Hopper's tensor cores, second kernel: [`super::chunk_scan_tensor`] by a warpgroup, whose products
//! run in the background and read keys, T and P from shared memory themselves.
//!
//! # Math
//! [`super::chunk_tensor`], for every chunk in order, transposed: the rows of every product are value columns.
//! ```text
//!   project   y^T = v^T - (s^T k'^T) h        s^T q'^T              64 x 32, sums over 128 rows
//!   solve     d'^T = y^T T^T                  o^T = .. + y^T P^T    64 x 32, sums over 32 tokens
//!   update    s^T <- e^(G_last) s^T + d'^T k'                       64 x 128, sums over 32 tokens
//! ```
//! # Threads: one block per (half of the columns, value head); 4 warps, 16 columns each, and 4 warps that copy
//! What a product leaves in a lane's registers is what the next one takes from them: s, y and d' never leave the warp.
//! ```text
//!   lane = 4 column + pair      s[n][..] columns `column` and `column + 8` of rows 8 n + 2 pair and the next
//! ```
//! # Order
//! Half of the queries' products run while y is made, the other half while d' is, and the new state's products with the next
//! chunk's keys as soon as its rows are new.
//!
//! # Barriers and memory
//! One barrier a chunk: before it, the next chunk's tiles have arrived and the chunk before it has been left. Tiles are copied
//! two chunks ahead.
//!
//! # Range and rounding
//! As in [`super::chunk_scan_tensor`].
mod inputs;
mod products;

use super::chunk::{Args, CHUNK, again, chunk_kernel};
use super::chunk_parts::{Part, final_state, initial_state};
use super::chunk_scan_tensor::factors::{Columns, Halves as AnyHalves, Pair, column_of};
use super::chunk_scan_tensor::lost;
use super::chunk_scan_tensor::scales::{Factors, Scale, have_lost, largest_of};
use super::chunk_tensor::{FACTORS, HEAD_FLOATS, KEY_MATRIX, OUT_FACTORS, Scratch, TOTAL_DECAY, for_each};
use crate::shape::{HEAD_DIM, key_head};
use cuda_std::async_copy::wait as wait_for_copies;
use cuda_std::float::{fma, larger_magnitudes_f16x2, unpack_f16x2};
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{
    block_idx_x, block_idx_y, let_next_launch_start, sync_roles, thread_idx_below, thread_idx_x, wait_for_last_launch,
};
use cuda_std::warp::{sync_warp, warp_shuffle_idx, warp_shuffle_xor};
use cuda_std::warpgroup::{Sums, arrived, commit, fence, fence_shared, wait};
use cuda_std::{GlobalMut, Tile};
use inputs::Inputs;
use products::{Step, d, gain, outputs, project, project_half};

pub use super::chunk_tensor::KEY_FLOATS;

/// Threads of a block: a warpgroup that computes, and loaders.
pub const THREADS: usize = MATH + LOADERS;
const MATH: usize = 128;
const LOADERS: usize = 128;
/// All of them, where the roles meet.
const ALL: u32 = THREADS as u32;
/// Columns of a value head that a block carries.
pub const COLUMNS_PER_BLOCK: usize = 64;
/// Columns that a warp carries.
const COLUMNS_PER_WARP: usize = 16;
/// Groups of eight rows of the state, of eight tokens; steps of sixteen.
const ROW_OCTETS: usize = HEAD_DIM / 8;
const TOKEN_OCTETS: usize = CHUNK / 8;
const ROW_STEPS: usize = HEAD_DIM / 16;
const TOKEN_STEPS: usize = CHUNK / 16;
/// Chunks whose tiles are in shared memory: the chunk, the next one, whose keys it takes, and two on their way.
const STAGES: usize = 4;

/// Blocks of a launch: parts of the columns, value heads of each of `parts` parts.
#[must_use]
pub const fn grid(num_value_heads: u32, parts: u32) -> [u32; 2] {
    [(HEAD_DIM / COLUMNS_PER_BLOCK) as u32, parts * num_value_heads]
}

/// From a token of v to the next in shared memory: what a warp reads together lies in different banks.
const V_STRIDE: usize = COLUMNS_PER_BLOCK + 4;

/// High and low parts of a chunk's keys, or of its queries.
type KeyTile = Tile<{ 2 * KEY_MATRIX }>;
type HeadTile = Tile<HEAD_FLOATS>;

/// What a chunk brings.                                    written by          read by
#[repr(C, align(16))]
struct Stage {
    /// `key_piece`: keys, queries, as in the scratch         loaders             project, update
    keys: [KeyTile; 2],
    /// `token_piece`: T, P; factors, as in the scratch       loaders             solve, factors
    head: HeadTile,
    /// [token][column]                                       loaders             y
    v: Tile<{ CHUNK * V_STRIDE }>,
    /// [half of the tokens][column]: its largest v           loaders             scales
    v_largest: Tile<{ 2 * COLUMNS_PER_BLOCK }>,
    /// Matrices lie on 1,024 bytes.
    unused: Tile<UNUSED>,
}

const USED: usize = KEY_FLOATS + HEAD_FLOATS + CHUNK * V_STRIDE + 2 * COLUMNS_PER_BLOCK;
const UNUSED: usize = USED.next_multiple_of(256) - USED;

/// Shared memory of a block.                               written by          read by
#[repr(C, align(16))]
struct Shared {
    stages: [Stage; STAGES],
    /// [thread that computes]: see `lost`                     math warps          math warps
    lost: Tile<MATH>,
}

/// Bytes of it.
pub const SHARED_BYTES: usize = size_of::<Shared>();
const _: () = assert!(SHARED_BYTES <= 227 * 1024 && size_of::<Stage>() % 1024 == 0);

chunk_kernel! {
    kernel "chunk_scan_warpgroup", capability 90 alone, blocks 1;
    entry gdn_chunk_scan_warpgroup = run, threads THREADS, shared SHARED_BYTES;
}

/// The lane's part of the state, by octets, and of it and of tokens as factors.
type State = [[f32; 4]; ROW_OCTETS];
type Halves = AnyHalves<ROW_STEPS>;
type TokenHalves = AnyHalves<TOKEN_STEPS>;

/// What the lane has of the problem.
struct Lane<'a> {
    args: &'a Args,
    lane: usize,
    warp: usize,
    shared: *mut Shared,
    out: GlobalMut<f32>,
}

/// What goes from chunk to chunk.
struct Carried {
    s: State,
    halves: Halves,
    scales: Columns<Scale>,
    at_keys: Sums,
    /// The largest elements of the columns of s, as it is kept.
    s_largest: Columns<f32>,
}

/// Where, in the head's state, element `i` of an octet of rows of the thread's part is.
#[inline(always)]
fn state_index(args: &Args, thread: usize, octet: usize, i: usize) -> usize {
    let row = 8 * octet + 2 * (thread % 4) + i % 2;
    let column = block_idx_x() as usize * COLUMNS_PER_BLOCK + thread / 32 * COLUMNS_PER_WARP + thread % 32 / 4;
    row * args.state_row_stride + column + 8 * column_of(i)
}

impl Lane<'_> {
    #[inline(always)]
    fn stage(&self, chunk: u32) -> *mut Stage {
        self.shared.cast::<Stage>().wrapping_add(chunk as usize % STAGES)
    }

    /// y of an octet of tokens: v less what the state gives at keys.
    ///
    /// # Safety
    /// The stage is complete.
    #[inline(always)]
    unsafe fn y<const OCTET: usize>(&self, stage: *mut Stage, columns: &Columns<Factors>, at_keys: &Sums) -> [f32; 4] {
        let first = 2 * (self.lane % 4) * V_STRIDE + self.warp % 4 * COLUMNS_PER_WARP + self.lane / 4;
        let mut y = [0.0; 4];
        // SAFETY: fields; bounds: token < 32, columns below 64, four octets of four pairs. Barrier: by the caller.
        unsafe {
            let (v, head) = (&raw mut (*stage).v, &raw mut (*stage).head);
            let h = Tile::quad(head, FACTORS + 4 * (4 * OCTET + self.lane % 4));
            for i in 0..4 {
                let column = columns[column_of(i)];
                let v = Tile::at(v, first + (8 * OCTET + i % 2) * V_STRIDE + 8 * column_of(i));
                y[i] = fma(-h[i % 2], at_keys[4 * OCTET + i] * column.s_to_y, v * column.y);
            }
        }
        y
    }

    /// The state, scaled and split, and its products with the first chunk's keys.
    ///
    /// # Safety
    /// The first chunk's tiles are complete; the whole warpgroup is here.
    #[inline(always)]
    unsafe fn start(&self, carried: &mut Carried) {
        // SAFETY: all lanes are here; complete by the caller. Fields.
        unsafe {
            let largest = largest_of(&carried.s);
            carried.scales = largest.map(Scale::of);
            let factors = carried.scales.map(Scale::factor);
            scale(&mut carried.s, factors);
            for_each!(STEP in [0 1 2 3 4 5 6 7] {
                carried.halves.set(STEP, Pair::of([carried.s[2 * STEP], carried.s[2 * STEP + 1]]));
            });
            let keys = &raw mut (*self.stage(0)).keys[0];
            fence();
            carried.at_keys = project_half::<0, true>([0.0; 16], keys, &carried.halves);
            carried.at_keys = project_half::<4, false>(carried.at_keys, keys, &carried.halves);
            commit();
            carried.s_largest = largest_half(&carried.halves);
        }
        wait::<0>();
        carried.at_keys = arrived(carried.at_keys);
    }

    /// The chunk's outputs: what the state gives at queries, and what y gives.
    ///
    /// # Safety
    /// As [`Lane::chunk`].
    #[inline(always)]
    unsafe fn store_outputs(&self, chunk: u32, tokens: u32, columns: &Columns<Factors>, at_queries: &Sums, own: &Sums) {
        // SAFETY: a field.
        let head = unsafe { &raw mut (*self.stage(chunk)).head };
        // Addresses are computed again in each chunk: carried along, they would take sixteen registers.
        // SAFETY: all lanes are here.
        let first_token = unsafe { again(chunk * CHUNK as u32) } as usize;
        let tokens = tokens.saturating_sub(2 * (self.lane % 4) as u32);
        for_each!(OCTET in [0 1 2 3] {
            let token = 8 * OCTET + 2 * (self.lane % 4);
            // SAFETY: bounds: in the tile. Barrier: by the caller.
            let (f, c) = unsafe {
                let [_, _, first, second] = Tile::quad(head, FACTORS + 4 * (4 * OCTET + self.lane % 4));
                ([first, second], [0, 1].map(|next| Tile::at(head, OUT_FACTORS + token + next)))
            };
            for i in 0..4 {
                let (column, next) = (columns[column_of(i)], i % 2);
                let at_query = at_queries[4 * OCTET + i] * column.s_to_y;
                let value = fma(f[next], at_query, own[4 * OCTET + i]) * column.y_inverse() * c[next];
                let index = (first_token + 8 * OCTET + next) * self.args.out_token_stride + 8 * column_of(i);
                // SAFETY: bounds: the token exists. Owner: this thread alone has (token, column).
                unsafe { self.out.put_if(8 * OCTET as u32 + (next as u32) < tokens, index, value) };
            }
        });
    }

    /// Notes that bits were lost, if they were. The place is computed again, since it is not to take a register all the way.
    ///
    /// # Safety
    /// All lanes are here.
    #[inline(always)]
    unsafe fn note(&self, has_lost: bool) {
        // SAFETY: a field; all lanes are here. Owner: a place a thread.
        unsafe { lost::note(&raw mut (*self.shared).lost, again(thread_idx_x()) as usize % MATH, has_lost) };
    }

    /// A chunk with `tokens` tokens in it and after it.
    ///
    /// # Safety
    /// Its tiles and the next chunk's are complete; the whole warpgroup is here.
    #[inline(always)]
    unsafe fn chunk(&self, chunk: u32, tokens: u32, carried: &mut Carried) {
        let (stage, next) = (self.stage(chunk), self.stage(chunk + 1));
        // SAFETY: fields.
        let (keys, queries, head, next_keys) = unsafe {
            let (keys, queries) = (&raw mut (*stage).keys[0], &raw mut (*stage).keys[1]);
            (keys, queries, &raw mut (*stage).head, &raw mut (*next).keys[0])
        };
        fence();
        // SAFETY: by the caller.
        let at_queries = unsafe { project_half::<0, true>([0.0; 16], queries, &carried.halves) };
        commit();

        // SAFETY: by the caller; all lanes are here. Bounds: in the tile.
        let (columns, y) = unsafe {
            let [total_decay, early_sum, late_sum, _] = Tile::quad(head, TOTAL_DECAY);
            let t_sum = early_sum + late_sum;
            let [mut first, mut second] = carried.scales;
            let tile = &raw mut (*stage).v_largest;
            let v_largest = [0, 8].map(|further| {
                let column = self.warp % 4 * COLUMNS_PER_WARP + self.lane / 4 + further;
                Tile::at(tile, column).max(Tile::at(tile, COLUMNS_PER_BLOCK + column))
            });
            let columns = [
                first.advance(carried.s_largest[0], v_largest[0], total_decay, t_sum),
                second.advance(carried.s_largest[1], v_largest[1], total_decay, t_sum),
            ];
            carried.scales = [first, second];
            self.note(columns[0].has_lost | columns[1].has_lost);
            let mut y = TokenHalves::ZERO;
            for_each!(STEP in [0 1] {
                let first = self.y::<{ 2 * STEP }>(stage, &columns, &carried.at_keys);
                let second = self.y::<{ 2 * STEP + 1 }>(stage, &columns, &carried.at_keys);
                y.set(STEP, Pair::of([first, second]));
            });
            (columns, y)
        };
        fence();
        // SAFETY: by the caller.
        let (t, at_queries) = unsafe {
            let t = d(head, &y);
            commit();
            (t, project_half::<4, false>(at_queries, queries, &carried.halves))
        };
        commit();
        wait::<1>();
        let t = arrived(t);
        // SAFETY: by the caller.
        let own = unsafe { outputs(head, &y) };
        commit();
        let mut d = TokenHalves::ZERO;
        for_each!(STEP in [0 1] {
            let mut octets = [[0.0; 4]; 2];
            for octet in 0..2 {
                for i in 0..4 {
                    octets[octet][i] = t[4 * (2 * STEP + octet) + i] * columns[column_of(i)].gain;
                }
            }
            d.set(STEP, Pair::of(octets));
        });
        let decay = columns.map(|column| column.decay);
        fence();
        // SAFETY: by the caller.
        let gained_0 = unsafe { gain::<0>(keys, &d) };
        commit();
        // y and the old halves have been read before the next sums need registers.
        wait::<1>();
        let (at_queries, own) = (arrived(at_queries), arrived(own));
        // SAFETY: by the caller.
        let gained_1 = unsafe { gain::<1>(keys, &d) };
        commit();
        // SAFETY: by the caller; all lanes are here. Stores do not pass the warp's barrier: put off to the end of the chunk,
        // where the assembler would have them, their sums would take registers that the state needs.
        unsafe {
            self.store_outputs(chunk, tokens, &columns, &at_queries, &own);
            sync_warp();
        }
        wait::<1>();
        let [step_0, step_1] = advance::<0>(carried, &arrived(gained_0), decay);
        fence();
        // SAFETY: by the caller.
        let (at_keys, gained_2) = unsafe {
            let at_keys = project::<true>([0.0; 16], next_keys, 0, step_0);
            (project::<false>(at_keys, next_keys, 1, step_1), gain::<2>(keys, &d))
        };
        commit();
        wait::<1>();
        let [step_2, step_3] = advance::<1>(carried, &arrived(gained_1), decay);
        fence();
        // SAFETY: by the caller.
        let (at_keys, gained_3) = unsafe {
            let at_keys = project::<false>(at_keys, next_keys, 2, step_2);
            (project::<false>(at_keys, next_keys, 3, step_3), gain::<3>(keys, &d))
        };
        commit();
        wait::<1>();
        let [step_4, step_5] = advance::<2>(carried, &arrived(gained_2), decay);
        fence();
        // SAFETY: by the caller.
        let at_keys = unsafe {
            let at_keys = project::<false>(at_keys, next_keys, 4, step_4);
            project::<false>(at_keys, next_keys, 5, step_5)
        };
        commit();
        wait::<1>();
        let [step_6, step_7] = advance::<3>(carried, &arrived(gained_3), decay);
        fence();
        // SAFETY: by the caller.
        let at_keys = unsafe {
            let at_keys = project::<false>(at_keys, next_keys, 6, step_6);
            project::<false>(at_keys, next_keys, 7, step_7)
        };
        commit();
        // SAFETY: all lanes are here.
        carried.s_largest = unsafe { largest_half(&carried.halves) };
        wait::<0>();
        carried.at_keys = arrived(at_keys);
    }
}

/// The largest magnitude in each of the lane's columns of the state, by its high parts, and a little more.
///
/// # Safety
/// All lanes of the warp are here.
#[inline(always)]
unsafe fn largest_half(halves: &Halves) -> Columns<f32> {
    /// What rounding to 11 bits may have taken.
    const ROUNDING: f32 = 1.001;
    [0, 1].map(|column| {
        let mut largest = 0;
        for_each!(STEP in [0 1 2 3 4 5 6 7] {
            largest = larger_magnitudes_f16x2(largest, halves.high[STEP][column]);
            largest = larger_magnitudes_f16x2(largest, halves.high[STEP][2 + column]);
        });
        let (first, second) = unpack_f16x2(largest);
        let largest = first.max(second) * ROUNDING;
        // SAFETY: all lanes are here. Four lanes share their columns.
        unsafe {
            let largest = largest.max(warp_shuffle_xor(largest, 1));
            largest.max(warp_shuffle_xor(largest, 2))
        }
    })
}

/// Rows `32 PART ..` of the new state, and their halves.
#[inline(always)]
fn advance<const PART: usize>(carried: &mut Carried, gained: &Sums, decay: Columns<f32>) -> [Step; 2] {
    for_each!(OCTET in [0 1 2 3] {
        for i in 0..4 {
            let value = &mut carried.s[4 * PART + OCTET][i];
            *value = fma(*value, decay[column_of(i)], gained[4 * OCTET + i]);
        }
    });
    [0, 1].map(|step| {
        let pair = Pair::of([carried.s[4 * PART + 2 * step], carried.s[4 * PART + 2 * step + 1]]);
        carried.halves.set(2 * PART + step, pair);
        Step { high: pair.high, low: pair.low }
    })
}

/// Scales each column by its power of two.
#[inline(always)]
fn scale(s: &mut State, factors: Columns<f32>) {
    for octet in 0..ROW_OCTETS {
        for i in 0..4 {
            s[octet][i] *= factors[column_of(i)];
        }
    }
}

/// The kernel.
///
/// # Safety
/// Called once by each of `THREADS` threads of each block of `grid()`, with `SHARED_BYTES` of shared memory, after
/// `chunk_prep_tensor` with the same arguments; every tensor holds what its shape and strides describe; v has 16-byte
/// aligned rows; out and the final state overlap no input but the initial state.
#[inline(always)]
pub unsafe fn run(args: Args) {
    let_next_launch_start();
    let thread = thread_idx_below::<THREADS>();
    let lane = thread % 32;
    // From the warp's first lane, so that the assembler knows it to be the same in all: products may not diverge.
    // SAFETY: all lanes are here.
    let warp = unsafe { warp_shuffle_idx(f32::from_bits((thread / 32) as u32), 0) }.to_bits() as usize % (THREADS / 32);
    let (place, value_head) = args.part_and_value_head(block_idx_y());
    let key_head = key_head(value_head, args.values_per_key, args.num_key_heads, args.head_map) as usize;
    let value_head = value_head as usize;
    let block_column = block_idx_x() as usize * COLUMNS_PER_BLOCK;
    let column = block_column + warp % 4 * COLUMNS_PER_WARP + lane / 4;
    // SAFETY: the grid has so many parts.
    let sequence = unsafe { Part::at(&args, place) };
    let shared = dynamic_shared_mem::<Shared>();
    let stages = shared.cast::<Stage>();
    let out = value_head * args.out_head_stride + 2 * (lane % 4) * args.out_token_stride + column;
    let part = Lane { args: &args, lane, warp, shared, out: sequence.out(&args).offset(out) };
    // A chunk is computed when the next one's tiles, too, have arrived.
    let chunks = sequence.chunks() as u32;
    if warp >= 4 {
        wait_for_last_launch();
        // SAFETY: all lanes are here, and all warps come to the same end.
        if unsafe { Scratch::of(&args).is_marked(&sequence, value_head, lane) } {
            return;
        }
        let mut inputs = Inputs::of(&args, &sequence, thread % LOADERS, stages, key_head, value_head, block_column);
        // SAFETY: nothing has been read yet.
        unsafe {
            inputs.stage();
            inputs.stage();
        }
        let mut arriving = 0;
        while chunks > 0 && arriving <= chunks {
            wait_for_copies::<1>();
            fence_shared();
            // SAFETY: both roles come as often. The tiles of the chunk two before the arriving one are left.
            unsafe {
                sync_roles::<ALL>();
                inputs.stage();
                inputs.measure_v(arriving);
            }
            arriving += 1;
        }
        wait_for_copies::<0>();
        if chunks > 0 {
            // SAFETY: both roles come as often.
            unsafe { sync_roles::<ALL>() };
        }
        return;
    }
    let mut carried = Carried {
        s: [[0.0; 4]; ROW_OCTETS],
        halves: Halves::ZERO,
        scales: [Scale::of(0.0); 2],
        at_keys: [0.0; 16],
        s_largest: [0.0; 2],
    };
    // SAFETY: there is such a part.
    let initial_state = unsafe { initial_state(&args, place) };
    if !initial_state.as_ptr().is_null() {
        let state = initial_state.offset(value_head * args.state_head_stride);
        for octet in 0..ROW_OCTETS {
            for i in 0..4 {
                // SAFETY: bounds: row and column are the head's. Owner: this thread alone, to the end.
                carried.s[octet][i] = unsafe { state.at(state_index(&args, thread, octet, i)) };
            }
        }
    }
    // The state is older than chunk prep, the marks are not.
    wait_for_last_launch();
    // SAFETY: all lanes are here, and all warps come to the same end.
    if unsafe { Scratch::of(&args).is_marked(&sequence, value_head, lane) } {
        return;
    }
    if chunks > 0 {
        // SAFETY: a field. Owner: a place a thread. Both roles come as often. The first chunk's tiles are complete.
        unsafe {
            // Below MATH for the compiler too: a branch to a trap, in front of products, has older assemblers serialise them all.
            Tile::put(&raw mut (*shared).lost, thread % MATH, 0.0);
            sync_roles::<ALL>();
            part.start(&mut carried);
        }
        let (mut chunk, mut tokens) = (0, sequence.tokens);
        while tokens > 0 {
            // SAFETY: as above. The next chunk's tiles are complete.
            unsafe {
                sync_roles::<ALL>();
                part.chunk(chunk, tokens, &mut carried);
            }
            chunk += 1;
            tokens = tokens.saturating_sub(CHUNK as u32);
        }
        // SAFETY: both roles come as often. All has been noted. The grid has so many parts; all lanes are here.
        unsafe {
            part.note(have_lost(&carried.scales, carried.s_largest));
            sync_roles::<ALL>();
            let (place, value_head) = args.part_and_value_head(again(block_idx_y()));
            let (sequence, scratch) = (Part::at(&args, place), Scratch::of(&args));
            let (half, thread) = (block_idx_x() as usize, again(thread_idx_x()) as usize % MATH);
            if lost::mark(&raw mut (*shared).lost, thread, scratch, &sequence, value_head as usize, half) {
                return;
            }
        }
        scale(&mut carried.s, carried.scales.map(Scale::inverse));
    }
    // SAFETY: all lanes are here. There is such a part.
    let (final_state, value_head, thread) = unsafe {
        // Computed again, since none of them is to take a register all the way.
        let (place, value_head) = args.part_and_value_head(again(block_idx_y()));
        (final_state(&args, place), value_head as usize, again(thread_idx_x()) as usize % MATH)
    };
    if !final_state.as_ptr().is_null() {
        let state = final_state.offset(value_head * args.state_head_stride);
        for octet in 0..ROW_OCTETS {
            for i in 0..4 {
                // SAFETY: bounds: row and column are the head's. Owner: this thread alone has them.
                unsafe { state.put(state_index(&args, thread, octet, i), carried.s[octet][i]) };
            }
        }
    }
}

const _: () = assert!(ROW_STEPS == 8 && TOKEN_STEPS == 2 && TOKEN_OCTETS == 4);
