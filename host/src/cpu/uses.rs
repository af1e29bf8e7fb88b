//! Which states each sequence of a call reads and writes, checked: no slot that is not there, none that two would use at once.
#![forbid(unsafe_code)]
use crate::call::{Call, Checkpoints, States};
use crate::dtype::Indices;
use crate::error::{Error, Result};
use crate::request::Request;
use std::collections::BTreeMap;

/// The states of one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// Padding: zeros are written, and no state is touched.
    pub padding: bool,
    /// The slot it starts from; None: from zero.
    pub read: Option<usize>,
    /// Slots by number, each with the tokens after which the state is stored there. Where several would be, the latest is.
    pub written: BTreeMap<usize, usize>,
}

/// What every sequence of `call`, which is valid, reads and writes.
///
/// # Errors
/// [`Error::Slot`] or [`Error::SharedSlot`].
pub(super) fn uses(call: &Call<'_>) -> Result<Vec<Use>> {
    let request = call.request();
    let (read_slots, written_slots) = (request.read_slots(), request.written_slots());
    let mut all = Vec::with_capacity(call.sequences.count());
    for index in 0..call.sequences.count() {
        all.push(one(call, &request, index, [read_slots, written_slots])?);
    }
    require_apart(&all, matches!(call.states, States::InPlace(_)))?;
    Ok(all)
}

fn one(call: &Call<'_>, request: &Request<'_>, index: usize, [read_slots, written_slots]: [usize; 2]) -> Result<Use> {
    // A slot in the tables; which pool it is looked up in decides how far it may go.
    let given = call.indices.as_ref().map_or(Some(index), |table| slot_of(table, index));
    let Some(slot) = given else { return Ok(Use { padding: true, ..Use::default() }) };
    let named = |argument, row, slot: usize, slots| {
        if slot < slots { Ok(slot) } else { Err(Error::Slot { argument, row, index: slot as i64, slots }) }
    };
    let mut found = Use::default();
    if request.initial.is_some() {
        found.read = Some(named("state_indices", index, slot, read_slots)?);
    }
    let tokens = call.sequences.tokens(index);
    match &call.checkpoints {
        Some(Checkpoints::PerToken(table)) => {
            let longest = call.sequences.longest();
            for token in 0..tokens {
                let row = index * longest + token;
                if let Some(slot) = slot_of(table, row) {
                    found.written.insert(named("checkpoints", row, slot, written_slots)?, token + 1);
                }
            }
        }
        Some(Checkpoints::Lanes(lanes)) => {
            let lanes = *lanes as usize;
            for token in 0..tokens {
                let lane = slot / lanes * lanes + token;
                found.written.insert(named("state_indices", index, lane, written_slots)?, token + 1);
            }
        }
        None => {}
    }
    let last = match (&call.output_indices, &call.checkpoints) {
        (Some(table), _) => slot_of(table, index).map(|slot| ("output_state_indices", slot)),
        (None, Some(Checkpoints::Lanes(_))) => None,
        (None, _) => Some(("state_indices", slot)),
    };
    if let (Some((argument, slot)), Some(_)) = (last, &request.last) {
        found.written.insert(named(argument, index, slot, written_slots)?, tokens);
    }
    Ok(found)
}

/// Number `row` of a table, None for padding.
fn slot_of(table: &Indices<'_>, row: usize) -> Option<usize> {
    let slot = table.at(row);
    // What does not fit is out of every pool.
    (slot >= 0).then(|| usize::try_from(slot).unwrap_or(usize::MAX))
}

/// That no sequence writes what another uses. `in_place`: they read the pool that they write.
fn require_apart(uses: &[Use], in_place: bool) -> Result<()> {
    let mut writers = BTreeMap::new();
    for (second, written) in uses.iter().enumerate() {
        for &slot in written.written.keys() {
            if let Some(first) = writers.insert(slot, second) {
                return Err(Error::SharedSlot { slot, first, second });
            }
        }
    }
    if in_place {
        for (second, read) in uses.iter().enumerate() {
            let Some(slot) = read.read else { continue };
            match writers.get(&slot) {
                Some(&first) if first != second => return Err(Error::SharedSlot { slot, first, second }),
                _ => {}
            }
        }
    }
    Ok(())
}
