//! States that are cleared and copied on the device, as launches.
#![forbid(unsafe_code)]
use crate::decode;
use crate::error::{Error, Result};
use crate::heads::Heads;
use crate::layout::StateOrder;
use crate::request::{Pool, Table};
use cuda_std::kernel::Entry;
use cuda_std::parameter::Words;
use cuda_std::{Global, GlobalMut};
use kernels_gpu::kernels::copy_states::{Args, KERNEL, MOST_WORDS, grid};
use kernels_gpu::kernels::slots::INDEX_32;
use std::collections::BTreeMap;
use std::ops::Range;

/// One launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub entry: &'static Entry<Args>,
    pub grid: [u32; 2],
    pub args: Args,
}

/// Where states come from: a pool and its slots.
pub(crate) type Source<'a> = (Pool, &'a [u32]);

/// That every slot of a list is in the pool, and, where it is written, that none is there twice.
///
/// # Errors
/// [`Error::Slot`] or [`Error::SharedSlot`], by the places in the list.
pub(crate) fn require_list(argument: &'static str, list: &[u32], pool: &Pool, is_written: bool) -> Result<()> {
    let mut seen = BTreeMap::new();
    for (row, &slot) in list.iter().enumerate() {
        if slot as usize >= pool.slots {
            return Err(Error::Slot { argument, row, index: i64::from(slot), slots: pool.slots });
        }
        if let Some(first) = seen.insert(slot, row).filter(|_| is_written) {
            return Err(Error::SharedSlot { slot: slot as usize, first, second: row });
        }
    }
    Ok(())
}

/// Every check of a copy of `from`, or of zeros, to slots `slots` of `to`. A pool is copied to itself where nothing that is
/// written is read too.
///
/// # Errors
/// [`Error::HeadDim`], [`Error::Shape`], [`Error::Null`], [`Error::Misaligned`], [`Error::Slot`] or [`Error::SharedSlot`].
pub(crate) fn require(heads: &Heads, from: Option<Source<'_>>, to: &Pool, slots: &[u32]) -> Result<()> {
    heads.require_128()?;
    to.require(heads, to.slots)?;
    require_list("to_slots", slots, to, true)?;
    let Some((pool, from_slots)) = from else { return Ok(()) };
    pool.require(heads, pool.slots)?;
    if from_slots.len() != slots.len() {
        return Err(Error::shape("to_slots", format!("{} slots, as from_slots has", from_slots.len()), slots.len()));
    }
    require_list("from_slots", from_slots, &pool, false)?;
    if pool.place.address == to.place.address {
        let written: BTreeMap<u32, usize> = slots.iter().enumerate().map(|(row, &slot)| (slot, row)).collect();
        for (second, slot) in from_slots.iter().enumerate() {
            if let Some(&first) = written.get(slot).filter(|&&first| first != second) {
                return Err(Error::SharedSlot { slot: *slot as usize, first, second });
            }
        }
    }
    Ok(())
}

/// The launches of a copy that [`require`] has let pass.
pub(crate) fn launches(
    heads: &Heads,
    from: Option<Source<'_>>,
    to: Pool,
    slots: &[u32],
) -> impl Iterator<Item = Launch> {
    let num_value_heads = heads.num_v_heads as u32;
    // Slots written, and after them those read.
    let most = if from.is_some() { MOST_WORDS / 2 } else { MOST_WORDS };
    slots.chunks(most).enumerate().map(move |(index, chunk)| {
        let mut words = chunk.to_vec();
        let mut args = to_args(&to, num_value_heads, chunk.len() as u32);
        if let Some((pool, from_slots)) = from {
            words.extend_from_slice(&from_slots[index * most..][..chunk.len()]);
            read_from(&mut args, &pool);
        }
        args.words = Words::new(&words);
        Launch { entry: &KERNEL.entries[0], grid: grid(args.count, num_value_heads), args }
    })
}

/// The slots of a pool that a copy goes through.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    /// One after the other, from this one on.
    InOrder(usize),
    /// Those in a table on the device; what is padding there is not copied.
    Table(Table),
}

impl Named {
    /// Those of some sequences: in `table`, or in their own order.
    pub fn of(table: Option<Table>, sequences: &Range<usize>) -> Self {
        table.map_or(Self::InOrder(sequences.start), |table| Self::Table(table.rows_from(sequences.start)))
    }

    fn words(self, count: usize) -> Vec<u32> {
        match self {
            Self::InOrder(first) => (first..first + count).map(|slot| slot as u32).collect(),
            // Not read.
            Self::Table(_) => vec![0; count],
        }
    }

    fn table(self) -> (Global<u8>, u32) {
        decode::table(match self {
            Self::InOrder(_) => None,
            Self::Table(table) => Some(table),
        })
    }
}

/// The launch of a copy of few states, at most half of [`MOST_WORDS`], between valid pools.
pub(crate) fn one(heads: &Heads, (from, read): (Pool, Named), (to, written): (Pool, Named), count: usize) -> Launch {
    let mut args = to_args(&to, heads.num_v_heads as u32, count as u32);
    read_from(&mut args, &from);
    args.words = Words::new(&[written.words(count), read.words(count)].concat());
    (args.source_indices, args.source_index) = read.table();
    (args.destination_indices, args.destination_index) = written.table();
    Launch { entry: &KERNEL.entries[0], grid: grid(args.count, args.num_value_heads), args }
}

impl Launch {
    /// The same, but for what `table` names no slot below `slots` for.
    pub fn guarded(mut self, table: Option<Table>, slots: usize) -> Self {
        (self.args.guard_indices, self.args.guard_index) = decode::table(table);
        self.args.guard_slots = slots;
        self
    }
}

/// Lets a copy read `pool`.
fn read_from(args: &mut Args, pool: &Pool) {
    let [slot, head, row, column] = strides(pool);
    args.source = Global::new(pool.place.address as *const f32);
    args.source_slot_stride = slot;
    args.source_head_stride = head;
    args.source_row_stride = row;
    args.source_column_stride = column;
    args.source_slots = pool.slots;
}

/// Zeros to `count` slots of `to`.
fn to_args(to: &Pool, num_value_heads: u32, count: u32) -> Args {
    let [slot, head, row, column] = strides(to);
    Args {
        words: Words::new(&[]),
        source: Global::new(core::ptr::null()),
        source_slot_stride: 0,
        source_head_stride: 0,
        source_row_stride: 0,
        source_column_stride: 0,
        source_slots: 0,
        destination: GlobalMut::new(to.place.address as *mut f32),
        destination_slot_stride: slot,
        destination_head_stride: head,
        destination_row_stride: row,
        destination_column_stride: column,
        destination_slots: to.slots,
        source_indices: Global::new(core::ptr::null()),
        destination_indices: Global::new(core::ptr::null()),
        guard_indices: Global::new(core::ptr::null()),
        guard_slots: 0,
        count,
        num_value_heads,
        source_index: INDEX_32,
        destination_index: INDEX_32,
        guard_index: INDEX_32,
    }
}

/// From a slot, a head, a key row and a column to the next.
fn strides(pool: &Pool) -> [usize; 4] {
    let layout = pool.layout;
    let (row, column) = match layout.order {
        StateOrder::KeyMajor => (layout.row, 1),
        StateOrder::ValueMajor => (1, layout.row),
    };
    [layout.slot, layout.head, row, column]
}
