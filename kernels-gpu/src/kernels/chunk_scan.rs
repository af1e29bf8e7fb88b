//! Chunked Gated DeltaNet, second kernel: carries the state through the chunks, for 16 columns of the value heads of a key
//! head.
//!
//! # Math
//! [`super::chunk`], for every chunk in order:
//! ```text
//!   project   y = v - e^G s^T k,   s^T q             32 x 16 each, sums over 128 rows
//!   solve     d = t_inv y,   o = scale e^G s^T q + p y      32 x 16 each, sums over the tokens before
//!   update    s <- e^(G_last) s + k^T d              128 x 16, sums over 32 tokens
//! ```
//! # Threads: one block per (column tile and group of value heads, key head); 128 threads for each of its value heads
//! ```text
//!   project, solve: a thread ends with token t and column quad c,      update: with row quad r and column quad c,
//!   but sums for all four tokens of t's group (and both column         16 values of the state, in registers
//!   quads of c's parity, in project) over a part of the rows or
//!   tokens; the lanes that share these then exchange their parts       lane:   bit 0 1 2 3 4
//!                                                                              c0 r0 r1 c1 r2,  r = 8 warp + ..
//!     lane:   bit 0  1  2  3  4
//!             c0 t2 t0 t1 c1,  t = 8 warp + .., part = t % 4 (+ 4 c1 in project)
//! ```
//! A thread adds up 64 sums from 16 quads at a time: with fewer sums a thread, shared memory would be the limit. The
//! exchange needs no selection, since each lane keeps its sums in an order that begins with its own.
//!
//! Lanes that differ in bit 0 or in bit 1 alone read the same quad of one operand each, and what eight such pairs read lies
//! in different banks: two accesses of 128 bytes serve the warp.
//!
//! # Memory
//! The next chunk's keys arrive while this one is computed, queries and triangles when theirs are no longer read. Four value
//! heads a key head are two blocks of two.
mod inputs;
mod phases;

use super::chunk::{Args, CHUNK, TOTAL_DECAY, TRIANGLE, again, chunk_kernel, column_index, view};
use crate::shape::{HEAD_DIM, value_head};
use cuda_std::async_copy::{commit, wait};
use cuda_std::float::fma;
use cuda_std::memory::Quad;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_x};
use cuda_std::{GlobalMut, Tile};
use inputs::Inputs;

/// Threads for each value head of a block.
pub const THREADS_PER_VALUE: usize = 128;
/// Columns of each value head that a block carries.
pub const COLUMNS_PER_BLOCK: usize = 16;
/// Column tiles of a value head.
const COLUMN_TILES: usize = HEAD_DIM / COLUMNS_PER_BLOCK;
/// The most value heads that one block carries.
pub const MOST_VALUES_PER_BLOCK: usize = 3;

/// Value heads of a block: as many of a key head's as there is an entry for and divide them.
#[must_use]
pub const fn values_per_block(values_per_key: usize) -> usize {
    let mut values = MOST_VALUES_PER_BLOCK;
    while !values_per_key.is_multiple_of(values) {
        values -= 1;
    }
    values
}

/// Blocks of a launch: column tiles of groups of value heads, key heads. The entry is number `values_per_block - 1`.
#[must_use]
pub const fn grid(num_key_heads: u32, values_per_key: usize) -> [u32; 2] {
    [(COLUMN_TILES * (values_per_key / values_per_block(values_per_key))) as u32, num_key_heads]
}

/// The keys or queries of a chunk, by `key_index`.
type KeyTile = Tile<{ CHUNK * HEAD_DIM }>;

/// The block's keys and queries.                          written by          read by
#[repr(C, align(16))]
struct Keys {
    /// This chunk and the next                            copies of all       project, update
    k: [KeyTile; 2],
    ///                                                    copies of all       project
    q: KeyTile,
}

/// What belongs to one value head.                        written by          read by its threads in
#[repr(C, align(16))]
struct Head {
    /// `column_index`: the state before the chunk         update              project
    s: Tile<{ HEAD_DIM * COLUMNS_PER_BLOCK }>,
    /// `column_index`                                     project             solve
    y: Tile<{ CHUNK * COLUMNS_PER_BLOCK }>,
    /// `column_index`                                     solve               update
    d: Tile<{ CHUNK * COLUMNS_PER_BLOCK }>,
    /// `triangle_index`: t_inv, p                         copies of its own   solve
    triangles: Tile<{ 2 * TRIANGLE }>,
}

/// Shared memory of a block of `values` value heads.
pub const fn shared_bytes(values: usize) -> usize {
    size_of::<Keys>() + values * size_of::<Head>()
}
const _: () = assert!(shared_bytes(MOST_VALUES_PER_BLOCK) <= 99 * 1024, "more than the smallest cards of sm_86 have");

chunk_kernel! {
    kernel "chunk_scan", capability 80, blocks 1;
    entry gdn_chunk_scan_r1 = run::<1>, threads THREADS_PER_VALUE, shared shared_bytes(1);
    entry gdn_chunk_scan_r2 = run::<2>, threads 2 * THREADS_PER_VALUE, shared shared_bytes(2);
    entry gdn_chunk_scan_r3 = run::<3>, threads 3 * THREADS_PER_VALUE, shared shared_bytes(3);
}

/// Where a thread stands.
#[derive(Clone, Copy, Debug)]
struct Role {
    /// Which of the block's value heads.
    value: usize,
    /// Index among the value head's threads.
    thread: usize,
    /// Token of the chunk that project and solve end with.
    token: usize,
    /// Column quad, in all phases but update.
    column_quad: usize,
    /// Which rows project takes: quads `row_part + 8 n`.
    row_part: usize,
    /// Rows and columns of the state that update holds.
    state_rows: usize,
    state_columns: usize,
}

impl Role {
    /// Which warp of the block.
    #[inline(always)]
    fn warp(self) -> usize {
        self.value * (THREADS_PER_VALUE / 32) + self.thread / 32
    }

    #[inline(always)]
    fn of(thread: usize) -> Self {
        let (value, thread) = (thread / THREADS_PER_VALUE, thread % THREADS_PER_VALUE);
        let (warp, lane) = (thread / 32, thread % 32);
        let bit = |n: usize| lane >> n & 1;
        // A warp of late tokens has twice the work in solve: heads deal them to different schedulers.
        let token_octet = (warp + value) % 4;
        let (token_in_quad, column_quad) = (lane / 4 % 4, bit(0) + 2 * bit(4));
        Self {
            value,
            thread,
            token: token_octet * 8 + bit(1) * 4 + token_in_quad,
            column_quad,
            row_part: bit(4) * 4 + token_in_quad,
            state_rows: warp * 8 + bit(1) + 2 * bit(2) + 4 * bit(4),
            state_columns: bit(0) + 2 * bit(3),
        }
    }
}

/// The thread's part of the problem.
struct Part<'a> {
    args: &'a Args,
    role: Role,
    value_head: usize,
    /// First column of the block.
    first_column: usize,
    keys: *mut Keys,
    head: *mut Head,
}

impl<'a> Part<'a> {
    #[inline(always)]
    fn of<const VALUES: usize>(args: &'a Args, thread: u32) -> Self {
        let role = Role::of(thread as usize);
        let key_head = block_idx_y();
        let (group, tile) = (block_idx_x() as usize / COLUMN_TILES, block_idx_x() as usize % COLUMN_TILES);
        let index = (group * VALUES + role.value) as u32;
        let value_head = value_head(key_head, index, args.values_per_key, args.num_key_heads, args.head_map) as usize;
        let keys = dynamic_shared_mem::<Keys>();
        Self {
            args,
            role,
            value_head,
            first_column: tile * COLUMNS_PER_BLOCK,
            keys,
            head: keys.wrapping_add(1).cast::<Head>().wrapping_add(role.value),
        }
    }

    /// Where the thread writes the first chunk's output.
    #[inline(always)]
    fn out(&self) -> GlobalMut<f32> {
        let Args { out_head_stride, out_token_stride, .. } = *self.args;
        let column = self.first_column + self.role.column_quad * 4;
        self.args.out.offset(self.value_head * out_head_stride + self.role.token * out_token_stride + column)
    }

    /// The thread's part of the initial state.
    #[inline(always)]
    fn load_state(&self) -> [Quad; 4] {
        let mut s = [[0.0; 4]; 4];
        if !self.args.initial_state.as_ptr().is_null() {
            let state = self.args.initial_state.offset(self.value_head * self.args.state_head_stride);
            for row in 0..4 {
                for column in 0..4 {
                    // SAFETY: bounds: row and column are the head's. Owner: this thread alone, until `store_state`.
                    s[row][column] = unsafe { state.at(self.state_index(row, column)) };
                }
            }
        }
        s
    }

    /// Writes the thread's part of the final state, unless it is to be dropped.
    #[inline(always)]
    fn store_state(&self, s: &[Quad; 4]) {
        if !self.args.final_state.as_ptr().is_null() {
            let state = self.args.final_state.offset(self.value_head * self.args.state_head_stride);
            for row in 0..4 {
                for column in 0..4 {
                    // SAFETY: bounds: row and column are the head's. Owner: this thread alone has them.
                    unsafe { state.put(self.state_index(row, column), s[row][column]) };
                }
            }
        }
    }

    #[inline(always)]
    fn state_index(&self, row: usize, column: usize) -> usize {
        let (row, column) = (self.role.state_rows * 4 + row, self.first_column + self.role.state_columns * 4 + column);
        row * self.args.state_row_stride + column
    }

    /// The thread's part of the state, in even and odd rows.
    #[inline(always)]
    fn state(&self) -> [*mut Tile<{ 2 * COLUMNS_PER_BLOCK + 4 }>; 2] {
        let Role { state_rows, state_columns, .. } = self.role;
        // SAFETY: a field.
        let s = unsafe { &raw mut (*self.head).s };
        // SAFETY: bounds: state_rows < 32.
        [0, 1].map(|row| unsafe { view(s, column_index(4 * state_rows + row, state_columns)) })
    }

    /// Writes the thread's part of the state for the next project.
    ///
    /// # Safety
    /// The last project's reads lie before a barrier that has passed, the next one's after one to come.
    #[inline(always)]
    unsafe fn show_state(&self, s: &[Quad; 4]) {
        let rows = self.state();
        for row in 0..4 {
            // SAFETY: bounds: row < 4. Owner: this thread alone has (row, column quad). Barrier: by the caller.
            unsafe { Tile::put_quad(rows[row % 2], row / 2 * 2 * COLUMNS_PER_BLOCK, s[row]) };
        }
    }

    /// What [`Part::show_state`] wrote last.
    ///
    /// # Safety
    /// It has been called.
    #[inline(always)]
    unsafe fn read_state(&self) -> [Quad; 4] {
        let rows = self.state();
        // SAFETY: bounds: row < 4. Owner: this thread alone writes it.
        [0, 1, 2, 3].map(|row| unsafe { Tile::quad(rows[row % 2], row / 2 * 2 * COLUMNS_PER_BLOCK) })
    }
}

/// The kernel.
///
/// # Safety
/// Called once by each of `VALUES * THREADS_PER_VALUE` threads of each block of `grid()`, with `shared_bytes(VALUES)` of
/// shared memory, after `chunk_prep` with the same arguments; every tensor holds what its shape and strides describe; q,
/// k, v and out have 16-byte aligned rows; out and the final state overlap no input but the initial state.
#[inline(always)]
pub unsafe fn run<const VALUES: usize>(args: Args) {
    let part = Part::of::<VALUES>(&args, thread_idx_x());
    let (keys, head) = (part.keys, part.head);
    let column_of_token = column_index(part.role.token, part.role.column_quad);
    let mut inputs = Inputs::<VALUES>::first(&part);
    let mut out = part.out();

    // SAFETY: nothing has been read yet; the first chunk's barriers order all of it.
    unsafe {
        inputs.stage_keys(&args, part.role, &raw mut (*keys).k[0], &raw mut (*keys).q);
        commit();
        inputs.stage_triangles(part.role, head);
        commit();
    }
    // SAFETY: as above.
    unsafe { part.show_state(&part.load_state()) };
    let mut next = inputs.token(part.role);

    let mut chunk = 0;
    while inputs.tokens > 0 {
        let token = next;
        // SAFETY: of two tiles, this chunk's and the other.
        let (k, next_k) = unsafe { (&raw mut (*keys).k[chunk % 2], &raw mut (*keys).k[(chunk + 1) % 2]) };
        wait::<1>();
        // SAFETY: all threads run all chunks. Keys, queries and the state are complete for project; update has left the
        // other keys.
        unsafe { sync_threads() };
        // SAFETY: complete by the barrier; all lanes are here.
        let (state_at_k, state_at_q) = unsafe { part.project(k) };
        let mut y = [0.0; 4];
        for column in 0..4 {
            y[column] = fma(-token.decay, state_at_k[column], token.v[column]);
        }
        // SAFETY: bounds: by `Role`. Owner: this thread alone has (token, column quad). Barrier: solve read the last y
        // before the barrier above, and reads this one after the one below.
        unsafe { Tile::put_quad(&raw mut (*head).y, column_of_token, y) };
        wait::<0>();
        // SAFETY: all threads run all chunks. y complete, and the triangles, for solve; project has left the queries.
        unsafe { sync_threads() };
        // SAFETY: bounds: the head's scratch of this chunk. Owner: written by the launch before.
        let total_decay = unsafe { inputs.scratch.at(TOTAL_DECAY) };
        let exists = part.role.token < inputs.tokens as usize;
        inputs.advance(&args);
        // SAFETY: the next chunk's keys go where update last read before the barrier above, queries where project has.
        unsafe { inputs.stage_keys(&args, part.role, next_k, &raw mut (*keys).q) };
        commit();
        next = inputs.token(part.role);
        // SAFETY: complete by the barrier; all lanes are here.
        let (d, o) = unsafe { Part::of::<VALUES>(&args, again(thread_idx_x())).solve() };
        // SAFETY: bounds: by `Role`. Owner: this thread alone has (token, column quad). Barrier: update read the last d
        // before the chunk's first barrier, and reads this one after the one below.
        unsafe { Tile::put_quad(&raw mut (*head).d, column_of_token, d) };
        if exists {
            let from_state = args.scale * token.decay;
            let mut values = [0.0; 4];
            for column in 0..4 {
                values[column] = fma(from_state, state_at_q[column], o[column]);
            }
            // SAFETY: bounds: the token exists. Owner: this thread alone has (token, column quad).
            unsafe { out.put_quad(0, values) };
        }
        out = out.offset(CHUNK * args.out_token_stride);
        // SAFETY: all threads run all chunks. d complete for update; solve has left the triangles.
        unsafe { sync_threads() };
        // SAFETY: solve has left the triangles.
        unsafe { inputs.stage_triangles(part.role, head) };
        commit();
        // SAFETY: complete by the barrier; all lanes are here. Project has left the state, and reads it after the next
        // chunk's first barrier.
        unsafe { Part::of::<VALUES>(&args, again(thread_idx_x())).update(total_decay, k) };
        chunk += 1;
    }
    wait::<0>();
    // SAFETY: all lanes are here; the state was shown above.
    unsafe {
        let part = Part::of::<VALUES>(&args, again(thread_idx_x()));
        part.store_state(&part.read_state());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_and_every_row_has_one_thread_for_each_column_quad() {
        let mut seen = [[[0; 4]; HEAD_DIM]; 2];
        for thread in 0..3 * THREADS_PER_VALUE {
            let role = Role::of(thread);
            seen[0][role.token][role.column_quad] += 1;
            seen[1][role.state_rows][role.state_columns] += 1;
        }
        assert!(seen.iter().flat_map(|side| &side[..32]).flatten().all(|&count| count == 3));
    }

    #[test]
    fn value_heads_are_dealt_to_blocks_without_a_rest() {
        for (values_per_key, expected) in [(1, 1), (2, 2), (3, 3), (4, 2), (5, 1), (6, 3), (8, 2)] {
            assert_eq!(values_per_block(values_per_key), expected);
        }
    }
}
