//! The checks that decide, used by every case. `mutation.rs` shows that they go red.
#![forbid(unsafe_code)]
use host::Heads;
use host::compare::{Bar, Tensor, compare, first_bit_difference};
use host::inputs::Inputs;
use host::reference::{Expected, reference_f64};

/// Why a check fails, in a sentence.
pub type Fails = String;

/// The bars of single cases; whatever is not here is held to [`host::compare::bars::SEQUENTIAL`].
pub mod bars {
    use host::compare::Bar;
    pub use host::compare::bars::{GENERAL, SEQUENTIAL};

    /// A chunked path on repeated keys.
    pub const REPEATED_KEYS: Bar = Bar {
        relative: 5e-5,
        derivation: "the inverse of I + A has entries as large as its sums of 32 of them, which cancel: up to 1.7e-5 by \
             forward substitution in a model, 1.1e-5 measured; doubling gives 2e-4 and more",
    };

    /// Parts of a prompt against the whole, cut between chunks, on tensor cores.
    pub const CUT_ON_TENSOR_CORES: Bar = Bar {
        relative: 2e-6,
        derivation: "a chunk after a cut takes its power of two from the state that is there, and in the middle of a call from a \
             bound of it, so that pairs of 16-bit floats round elsewhere: the errors of both are up to 7e-7",
    };

    /// Keys of length 8 to 14: each token multiplies what it finds at its key by -60 to -120.
    pub const UNNORMALISED: Bar = Bar {
        relative: 1e-4,
        derivation: "a sum of 128 products loses up to 7 bits to cancellation in each of 16 tokens; 6e-6 in a model",
    };
}

/// What a path wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// `[tokens, HV, 128]`.
    pub out: Vec<f32>,
    /// `[HV][128][128]`.
    pub state: Vec<f32>,
}

impl Output {
    /// Buffers of NaN, so that an element that is not written fails every check.
    #[must_use]
    pub fn poisoned(inputs: &Inputs) -> Self {
        Self { out: vec![f32::NAN; inputs.out_len(inputs.tokens)], state: vec![f32::NAN; inputs.state_len()] }
    }
}

/// What the float64 reference makes of `inputs`.
#[must_use]
pub fn expected_of(inputs: &Inputs) -> Expected {
    reference_f64(inputs)
}

/// That output and state are within `bar` of what is expected: the largest error of the whole tensor, of every head by
/// itself, and the root mean square. Something that is not finite never is, unless the same is expected.
///
/// # Errors
/// The first tensor that is not, with its worst element.
pub fn agrees(heads: &Heads, expected: &Expected, actual: &Output, bar: &Bar) -> Result<(), Fails> {
    for (tensor, expected, actual) in
        [(Tensor::Out, &expected.out, &actual.out), (Tensor::State, &expected.state, &actual.state)]
    {
        if expected.len() != actual.len() {
            return Err(format!("{tensor:?}: {} elements instead of {}", actual.len(), expected.len()));
        }
        let comparison = compare(tensor, heads, expected, actual);
        if !comparison.meets(bar) || comparison.rms_ratio > bar.relative {
            let worst = comparison.worst.map(|place| place.to_string()).unwrap_or_default();
            return Err(format!("{tensor:?}, worst at {worst}, bar {}: {comparison:?}", bar.relative));
        }
    }
    Ok(())
}

/// That two outputs are within `bar` of each other.
///
/// # Errors
/// The first tensor that is not.
pub fn close(heads: &Heads, a: &Output, b: &Output, bar: &Bar) -> Result<(), Fails> {
    for (tensor, a, b) in [(Tensor::Out, &a.out, &b.out), (Tensor::State, &a.state, &b.state)] {
        if a.len() != b.len() {
            return Err(format!("{tensor:?}: {} elements and {}", a.len(), b.len()));
        }
        let comparison = compare(tensor, heads, a, b);
        if !comparison.meets(bar) {
            return Err(format!("{tensor:?}, bar {}: {comparison:?}", bar.relative));
        }
    }
    Ok(())
}

/// That two outputs have the same bits.
///
/// # Errors
/// The first element that differs.
pub fn same_bits(heads: &Heads, a: &Output, b: &Output) -> Result<(), Fails> {
    for (tensor, a, b) in [(Tensor::Out, &a.out, &b.out), (Tensor::State, &a.state, &b.state)] {
        if a.len() != b.len() {
            return Err(format!("{tensor:?}: {} elements and {}", a.len(), b.len()));
        }
        if let Some(place) = first_bit_difference(tensor, heads, a, b) {
            return Err(format!("bits differ first at {place}"));
        }
    }
    Ok(())
}

/// That two tensors hold the same finite numbers, where +0 and -0 are the same.
///
/// # Errors
/// The first element that differs.
pub fn same_numbers(a: &[f32], b: &[f32]) -> Result<(), Fails> {
    if a.len() != b.len() {
        return Err(format!("{} elements and {}", a.len(), b.len()));
    }
    match a.iter().zip(b).position(|(a, b)| a != b || !a.is_finite()) {
        None => Ok(()),
        Some(index) => Err(format!("element {index}: {:e} and {:e}", a[index], b[index])),
    }
}

/// That elements which nobody may write have the bits they had.
///
/// # Errors
/// The first element that has not.
pub fn untouched(before: &[f32], after: &[f32], may_write: impl Fn(usize) -> bool) -> Result<(), Fails> {
    let changed = |index: &usize| !may_write(*index) && before[*index].to_bits() != after[*index].to_bits();
    match (0..before.len()).find(changed) {
        None => Ok(()),
        Some(index) => Err(format!("element {index} was {:e} and is {:e}", before[index], after[index])),
    }
}
