//! The three phases of the scan's chunk: what a thread reads of shared memory, multiplies and adds.
use super::{COLUMNS_PER_BLOCK, KeyTile, Part, Role};
use crate::kernels::chunk::{BLOCK, CHUNK, ROW_QUADS, TRIANGLE, again, column_index, key_index, triangle_index, view};
use crate::shape::HEAD_DIM;
use cuda_std::Tile;
use cuda_std::float::fma;
use cuda_std::memory::Quad;
use cuda_std::warp::warp_shuffle_xor;

impl Part<'_> {
    /// s^T k and s^T q of the thread's token and columns.
    ///
    /// # Safety
    /// Keys, queries and the state are complete; all lanes of the warp are here.
    #[inline(always)]
    pub(super) unsafe fn project(&self, k: *mut KeyTile) -> (Quad, Quad) {
        let Role { token, column_quad, row_part, .. } = self.role;
        // SAFETY: a field.
        let (q, s) = unsafe { (&raw mut (*self.keys).q, &raw mut (*self.head).s) };
        // SAFETY: bounds: token < 32, row_part < 8.
        let rows = |tile, other_token| unsafe { view(tile, key_index(token ^ other_token, row_part)) };
        let (k_rows, q_rows): (TokenRows, TokenRows) =
            ([0, 1, 2, 3].map(|other| rows(k, other)), [0, 1, 2, 3].map(|other| rows(q, other)));
        // Of even and odd rows, own column quad and the other.
        let index = |row, other| column_index(4 * row_part + row, column_quad ^ other);
        // SAFETY: bounds: row_part < 8.
        let [even, odd] = [0, 1].map(|row| [0, 2].map(|other| unsafe { view(s, index(row, other)) }));
        let (mut keys, mut queries) = ([[[0.0; 4]; 2]; 4], [[[0.0; 4]; 2]; 4]);
        // Not unrolled (by its size): then the loads of all turns want registers at once. And not seen through: then each
        // of the twelve addresses would be counted up in a register of its own.
        for turn in 0..ROW_TURNS as u32 {
            // SAFETY: all lanes are here.
            let turn = unsafe { again(turn) } as usize % ROW_TURNS;
            let mut s = [[[0.0; 4]; 2]; 4];
            for pair in 0..2 {
                for other in 0..2 {
                    let index = (turn * 8 * 4 + pair * 2) * COLUMNS_PER_BLOCK;
                    // SAFETY: bounds: four rows of each turn. Barrier: the one at the chunk's start.
                    unsafe {
                        s[2 * pair][other] = Tile::<STATE_VIEW>::quad(even[other], index);
                        s[2 * pair + 1][other] = Tile::<STATE_VIEW>::quad(odd[other], index);
                    }
                }
            }
            // SAFETY: Barrier: the one at the chunk's start.
            unsafe {
                multiply(&mut keys, &k_rows, turn, &s);
                multiply(&mut queries, &q_rows, turn, &s);
            }
        }
        // SAFETY: all lanes are here.
        unsafe { (gather(&keys), gather(&queries)) }
    }

    /// t_inv y and p y of the thread's token and columns.
    ///
    /// # Safety
    /// y and the triangles are complete; all lanes of the warp are here.
    #[inline(always)]
    pub(super) unsafe fn solve(&self) -> (Quad, Quad) {
        let Role { token, column_quad, .. } = self.role;
        // [own token, then the three others of its group][column]
        let (mut d, mut o) = ([[0.0; 4]; 4], [[0.0; 4]; 4]);
        // SAFETY: a field.
        let (y, triangles) = unsafe { (&raw mut (*self.head).y, &raw mut (*self.head).triangles) };
        // SAFETY: bounds: rows below 16.
        let [even, odd]: [*mut Tile<Y_VIEW>; 2] =
            [0, 1].map(|row| unsafe { view(y, column_index(token % 4 * 4 + row, column_quad)) });
        // SAFETY: bounds: token < 32; a view that begins above the diagonal is not read.
        let rows: [*mut Tile<TRIANGLE_VIEW>; 4] =
            [0, 1, 2, 3].map(|other| unsafe { view(triangles, triangle_index(token ^ other, token % 4)) });
        for turn in 0..2 {
            let earlier_quad = token % 4 + 4 * turn;
            if earlier_quad <= token / 4 {
                let mut y = [[0.0; 4]; 4];
                for pair in 0..2 {
                    let index = (turn * 16 + pair * 2) * COLUMNS_PER_BLOCK;
                    // SAFETY: bounds: earlier_quad < 8. Barrier: "y complete".
                    unsafe {
                        y[2 * pair] = Tile::quad(even, index);
                        y[2 * pair + 1] = Tile::quad(odd, index);
                    }
                }
                for other_token in 0..4 {
                    let (row, index) = (rows[other_token], turn * 4 * BLOCK);
                    // SAFETY: bounds: earlier_quad <= token / 4. Barrier: "y complete".
                    let (t_inv, p) = unsafe { (Tile::quad(row, index), Tile::quad(row, TRIANGLE + index)) };
                    for i in 0..4 {
                        for column in 0..4 {
                            d[other_token][column] = fma(t_inv[i], y[i][column], d[other_token][column]);
                            o[other_token][column] = fma(p[i], y[i][column], o[other_token][column]);
                        }
                    }
                }
            }
        }
        // SAFETY: all lanes are here.
        unsafe { (gather_tokens(&d), gather_tokens(&o)) }
    }

    /// Decays the thread's part of the state and adds the chunk's corrections.
    ///
    /// # Safety
    /// Keys and d are complete; project has left the state, and reads it after a barrier to come.
    #[inline(always)]
    pub(super) unsafe fn update(&self, total_decay: f32, k: *mut KeyTile) {
        let Role { state_rows, state_columns, .. } = self.role;
        // SAFETY: a field.
        let d = unsafe { &raw mut (*self.head).d };
        // Of even and odd groups of four tokens.
        // SAFETY: bounds: state_rows < 32.
        let k: [*mut Tile<{ (CHUNK - 1) * HEAD_DIM + 4 }>; 2] =
            [0, 4].map(|token| unsafe { view(k, key_index(token, state_rows) % HEAD_DIM) });
        // SAFETY: bounds: state_columns < 4.
        let d: [*mut Tile<{ (CHUNK - 1) * COLUMNS_PER_BLOCK + 4 }>; 2] =
            [0, 4].map(|token| unsafe { view(d, column_index(token, state_columns) % COLUMNS_PER_BLOCK) });
        // SAFETY: this thread's part.
        let mut s = unsafe { self.read_state() };
        for value in s.as_flattened_mut() {
            *value *= total_decay;
        }
        for octet in 0..CHUNK / 8 {
            for odd in 0..2 {
                for i in 0..4 {
                    let token = 8 * octet + 4 * odd + i;
                    let row_of_d = token ^ (octet % 2);
                    // SAFETY: bounds: token < 32. Barrier: "d complete".
                    let (k, d) = unsafe {
                        (Tile::quad(k[odd], token * HEAD_DIM), Tile::quad(d[odd], row_of_d * COLUMNS_PER_BLOCK))
                    };
                    for row in 0..4 {
                        for column in 0..4 {
                            s[row][column] = fma(k[row], d[column], s[row][column]);
                        }
                    }
                }
            }
        }
        // SAFETY: by the caller.
        unsafe { self.show_state(&s) };
    }
}

/// What project adds up: [own token, then the three others of its group][own column quad, the other][column].
type Sums = [[Quad; 2]; 4];

/// What a thread reads of one column quad of y, in even or odd rows, and of a row of both triangles.
const Y_VIEW: usize = (16 + 2) * COLUMNS_PER_BLOCK + 4;
const TRIANGLE_VIEW: usize = TRIANGLE + 4 * BLOCK + 4;

/// A thread takes its part of the rows in so many turns, four rows of every 32 each.
const ROW_TURNS: usize = ROW_QUADS / 8;
/// What a thread reads of a token's keys, and of one column quad of the state, in even or odd rows.
const KEY_VIEW: usize = (ROW_TURNS - 1) * 32 + 4;
const STATE_VIEW: usize = ((ROW_TURNS - 1) * 32 + 2) * COLUMNS_PER_BLOCK + 4;
/// A thread's rows of the own token and of the three others of its group.
type TokenRows = [*mut Tile<KEY_VIEW>; 4];

/// Adds to the sums of a group of tokens what a turn's four rows of them and of the state give.
///
/// # Safety
/// The keys or queries are complete.
#[inline(always)]
unsafe fn multiply(sums: &mut Sums, rows: &TokenRows, turn: usize, s: &[[Quad; 2]; 4]) {
    for other_token in 0..4 {
        // SAFETY: bounds: by the view. Barrier: by the caller.
        let x = unsafe { Tile::quad(rows[other_token], turn * 32) };
        for row in 0..4 {
            for other in 0..2 {
                for column in 0..4 {
                    let sum = &mut sums[other_token][other][column];
                    *sum = fma(x[row], s[row][other][column], *sum);
                }
            }
        }
    }
}

/// Sums the parts of the eight lanes that share a group of tokens and two column quads.
///
/// # Safety
/// All lanes of the warp make this call together.
#[inline(always)]
unsafe fn gather(sums: &Sums) -> Quad {
    let mut halves = [[0.0; 4]; 4];
    for other_token in 0..4 {
        for column in 0..4 {
            let [own, other] = [sums[other_token][0][column], sums[other_token][1][column]];
            // SAFETY: all lanes are here. The lane with the other column quad differs in bit 4, and has its parts of this
            // one's sums in second place.
            halves[other_token][column] = own + unsafe { warp_shuffle_xor(other, 16) };
        }
    }
    // SAFETY: all lanes are here.
    unsafe { gather_tokens(&halves) }
}

/// Sums the parts of four lanes whose tokens differ in their two lowest bits, each lane with its own token first.
///
/// # Safety
/// All lanes of the warp make this call together.
#[inline(always)]
unsafe fn gather_tokens(parts: &[Quad; 4]) -> Quad {
    let mut gathered = [0.0; 4];
    for column in 0..4 {
        // SAFETY: all lanes are here. Bits 2 and 3 of the lane are bits 0 and 1 of the token.
        unsafe {
            let own = parts[0][column] + warp_shuffle_xor(parts[2][column], 8);
            let other = parts[1][column] + warp_shuffle_xor(parts[3][column], 8);
            gathered[column] = own + warp_shuffle_xor(other, 4);
        }
    }
    gathered
}
