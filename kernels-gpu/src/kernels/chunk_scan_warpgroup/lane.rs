//! What a thread that computes has and does: its part of the state, from chunk to chunk.
use super::products::{Step, d, gain, outputs, project, project_half};
use super::{
    COLUMNS_PER_BLOCK, COLUMNS_PER_WARP, Halves, MATH, ROW_OCTETS, STAGES, Shared, Stage, State, TOKEN_OCTETS,
    TokenHalves, V_STRIDE,
};
use crate::kernels::chunk::{Args, CHUNK, again};
use crate::kernels::chunk_scan_tensor::factors::{Columns, Factor, Pair, column_of};
use crate::kernels::chunk_scan_tensor::lost;
use crate::kernels::chunk_scan_tensor::scales::{Factors, Scale, have_lost, largest_of};
use crate::kernels::chunk_tensor::{FACTORS, OUT_FACTORS, TOTAL_DECAY, for_each};
use cuda_std::float::{fma, larger_magnitudes_f16x2, unpack_f16x2};
use cuda_std::thread::thread_idx_x;
use cuda_std::warp::{sync_warp, warp_shuffle_xor};
use cuda_std::warpgroup::{Sums, arrived, commit, fence, wait};
use cuda_std::{GlobalMut, Tile};

/// What the lane has of the problem.
pub struct Lane<'a> {
    pub args: &'a Args,
    pub lane: usize,
    pub warp: usize,
    pub shared: *mut Shared,
    /// The output of its first token, first column.
    pub out: GlobalMut<f32>,
}

/// The first of a lane's two columns among the block's, which are neighbours.
#[inline(always)]
pub fn first_column(warp: usize, lane: usize) -> usize {
    warp % 4 * COLUMNS_PER_WARP + 2 * (lane / 4)
}

/// What goes from chunk to chunk.
pub struct Carried {
    pub s: State,
    halves: Halves,
    scales: Columns<Scale>,
    at_keys: Sums,
    /// The largest elements of the columns of s, as it is kept, in the lane's rows.
    largest: LargestHalves,
}

impl Carried {
    #[inline(always)]
    pub fn of(s: State) -> Self {
        Self { s, halves: Halves::ZERO, scales: [Scale::of(0.0); 2], at_keys: [0.0; 16], largest: [0; 2] }
    }

    /// Leaves the state without scales.
    #[inline(always)]
    pub fn rescale(&mut self) {
        scale(&mut self.s, self.scales.map(Scale::inverse));
    }
}

/// What a chunk brings for y, of the lane's tokens and columns.
struct Brought {
    /// [octet][token][column]
    v: [[[f32; 2]; 2]; TOKEN_OCTETS],
    /// [octet][token]
    h: [[f32; 2]; TOKEN_OCTETS],
    /// [column]: the largest v
    largest: Columns<f32>,
    /// e^(G_last), and sums of T's entries
    t: [f32; 4],
}

impl Brought {
    /// y of an octet of tokens: v less what the state gives at keys.
    #[inline(always)]
    fn y<const OCTET: usize>(&self, columns: &Columns<Factors>, at_keys: &Sums) -> [f32; 4] {
        let mut y = [0.0; 4];
        for_each!(I in [0 1 2 3] {
            let (column, next) = (&columns[column_of(I)], I % 2);
            let v = self.v[OCTET][next][column_of(I)];
            y[I] = fma(-self.h[OCTET][next], at_keys[4 * OCTET + I] * column.s_to_y, v * column.y);
        });
        y
    }
}

impl Lane<'_> {
    #[inline(always)]
    fn stage(&self, chunk: u32) -> *mut Stage {
        self.shared.cast::<Stage>().wrapping_add(chunk as usize % STAGES)
    }

    /// What the chunk brings for y.
    ///
    /// # Safety
    /// The stage is complete.
    #[inline(always)]
    unsafe fn read(&self, stage: *mut Stage) -> Brought {
        let column = first_column(self.warp, self.lane);
        let first = 2 * (self.lane % 4) * V_STRIDE + column;
        let mut brought =
            Brought { v: [[[0.0; 2]; 2]; TOKEN_OCTETS], h: [[0.0; 2]; TOKEN_OCTETS], largest: [0.0; 2], t: [0.0; 4] };
        // SAFETY: fields; bounds: token < 32, columns below 64, four octets of four pairs. Barrier: by the caller.
        unsafe {
            let (v, head, largest) = (&raw mut (*stage).v, &raw mut (*stage).head, &raw mut (*stage).v_largest);
            let (early, late) = (Tile::pair(largest, column), Tile::pair(largest, COLUMNS_PER_BLOCK + column));
            brought.largest = [early[0].max(late[0]), early[1].max(late[1])];
            brought.t = Tile::quad(head, TOTAL_DECAY);
            for_each!(OCTET in [0 1 2 3] {
                brought.h[OCTET] = Tile::pair(head, FACTORS + 4 * (4 * OCTET + self.lane % 4));
                brought.v[OCTET] = [
                    Tile::pair(v, first + 8 * OCTET * V_STRIDE),
                    Tile::pair(v, first + (8 * OCTET + 1) * V_STRIDE),
                ];
            });
        }
        brought
    }

    /// The state, scaled and split, and its products with the first chunk's keys.
    ///
    /// # Safety
    /// The first chunk's tiles are complete; the whole warpgroup is here.
    #[inline(always)]
    pub unsafe fn start(&self, carried: &mut Carried) {
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
            carried.largest = [0; 2];
            for_each!(STEP in [0 1 2 3 4 5 6 7] {
                carried.largest = larger(carried.largest, &carried.halves.high[STEP]);
            });
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
                let index = (first_token + 8 * OCTET + next) * self.args.out_token_stride + column_of(i);
                // SAFETY: bounds: the token exists. Owner: this thread alone has (token, column).
                unsafe { self.out.put_if(8 * OCTET as u32 + (next as u32) < tokens, index, value) };
            }
        });
    }

    /// Notes whether the state at the end has lost bits.
    ///
    /// # Safety
    /// All lanes are here.
    #[inline(always)]
    pub unsafe fn note_end(&self, carried: &Carried) {
        // SAFETY: a field; all lanes are here. Owner: a place a thread.
        unsafe {
            let place = again(thread_idx_x()) as usize % MATH;
            let has_lost = have_lost(&carried.scales, largest_of_columns(carried.largest));
            lost::note(&raw mut (*self.shared).lost, place, has_lost);
        }
    }

    /// A chunk with `tokens` tokens in it and after it.
    ///
    /// # Safety
    /// Its tiles and the next chunk's are complete; the whole warpgroup is here.
    #[inline(always)]
    pub unsafe fn chunk(&self, chunk: u32, tokens: u32, carried: &mut Carried) {
        let (stage, next) = (self.stage(chunk), self.stage(chunk + 1));
        // SAFETY: fields.
        let (keys, queries, head, next_keys) = unsafe {
            let (keys, queries) = (&raw mut (*stage).keys[0], &raw mut (*stage).keys[1]);
            (keys, queries, &raw mut (*stage).head, &raw mut (*next).keys[0])
        };
        // What it brings comes before the products, whose reads of shared memory it would have to wait for.
        // SAFETY: complete by the caller; all lanes are here.
        let (brought, s_largest) = unsafe {
            let brought = self.read(stage);
            let s_largest = largest_of_columns(carried.largest);
            sync_warp();
            (brought, s_largest)
        };
        fence();
        // SAFETY: by the caller.
        let at_queries = unsafe { project_half::<0, true>([0.0; 16], queries, &carried.halves) };
        commit();

        let [total_decay, early_sum, late_sum, _] = brought.t;
        let t_sum = early_sum + late_sum;
        let [mut first, mut second] = carried.scales;
        let columns = [
            first.advance(s_largest[0], brought.largest[0], total_decay, t_sum),
            second.advance(s_largest[1], brought.largest[1], total_decay, t_sum),
        ];
        carried.scales = [first, second];
        let mut y = TokenHalves::ZERO;
        for_each!(STEP in [0 1] {
            let first = brought.y::<{ 2 * STEP }>(&columns, &carried.at_keys);
            let second = brought.y::<{ 2 * STEP + 1 }>(&columns, &carried.at_keys);
            y.set(STEP, Pair::of([first, second]));
        });
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
        let mut largest = [0; 2];
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
        let [step_0, step_1] = advance::<0>(carried, &mut largest, &arrived(gained_0), decay);
        fence();
        // SAFETY: by the caller.
        let (at_keys, gained_2) = unsafe {
            let at_keys = project::<true>([0.0; 16], next_keys, 0, step_0);
            (project::<false>(at_keys, next_keys, 1, step_1), gain::<2>(keys, &d))
        };
        commit();
        wait::<1>();
        let [step_2, step_3] = advance::<1>(carried, &mut largest, &arrived(gained_1), decay);
        fence();
        // SAFETY: by the caller.
        let (at_keys, gained_3) = unsafe {
            let at_keys = project::<false>(at_keys, next_keys, 2, step_2);
            (project::<false>(at_keys, next_keys, 3, step_3), gain::<3>(keys, &d))
        };
        commit();
        wait::<1>();
        let [step_4, step_5] = advance::<2>(carried, &mut largest, &arrived(gained_2), decay);
        fence();
        // SAFETY: by the caller.
        let at_keys = unsafe {
            let at_keys = project::<false>(at_keys, next_keys, 4, step_4);
            project::<false>(at_keys, next_keys, 5, step_5)
        };
        commit();
        wait::<1>();
        let [step_6, step_7] = advance::<3>(carried, &mut largest, &arrived(gained_3), decay);
        fence();
        // SAFETY: by the caller.
        let at_keys = unsafe {
            let at_keys = project::<false>(at_keys, next_keys, 6, step_6);
            project::<false>(at_keys, next_keys, 7, step_7)
        };
        commit();
        carried.largest = largest;
        wait::<0>();
        carried.at_keys = arrived(at_keys);
    }
}

/// The largest magnitudes of some rows in the lane's columns, by their high parts: of each column, two in 16 bits.
type LargestHalves = Columns<u32>;

/// Those of sixteen rows more.
#[inline(always)]
fn larger(largest: LargestHalves, high: &Factor) -> LargestHalves {
    [0, 1].map(|column| {
        let own = larger_magnitudes_f16x2(high[column], high[2 + column]);
        larger_magnitudes_f16x2(largest[column], own)
    })
}

/// The largest magnitude in each of the lane's columns over the four lanes that have parts of them, and a little more.
///
/// # Safety
/// All lanes of the warp are here.
#[inline(always)]
unsafe fn largest_of_columns([first, second]: LargestHalves) -> Columns<f32> {
    /// What rounding to 11 bits may have taken.
    const ROUNDING: f32 = 1.001;
    // One of each column.
    let mut largest = larger_magnitudes_f16x2(first & 0xffff | second << 16, first >> 16 | second & 0xffff_0000);
    for bit in 0..2 {
        // SAFETY: all lanes are here.
        let others = unsafe { warp_shuffle_xor(f32::from_bits(largest), 1 << bit) };
        largest = larger_magnitudes_f16x2(largest, others.to_bits());
    }
    let (first, second) = unpack_f16x2(largest);
    [first * ROUNDING, second * ROUNDING]
}

/// Rows `32 PART ..` of the new state, and their halves.
#[inline(always)]
fn advance<const PART: usize>(
    carried: &mut Carried,
    largest: &mut LargestHalves,
    gained: &Sums,
    decay: Columns<f32>,
) -> [Step; 2] {
    for_each!(OCTET in [0 1 2 3] {
        for i in 0..4 {
            let value = &mut carried.s[4 * PART + OCTET][i];
            *value = fma(*value, decay[column_of(i)], gained[4 * OCTET + i]);
        }
    });
    [0, 1].map(|step| {
        let pair = Pair::of([carried.s[4 * PART + 2 * step], carried.s[4 * PART + 2 * step + 1]]);
        carried.halves.set(2 * PART + step, pair);
        *largest = larger(*largest, &pair.high);
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
