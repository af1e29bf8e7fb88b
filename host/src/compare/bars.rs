//! Every bar there is: how far apart two tensors may be, and where the number comes from.
#![forbid(unsafe_code)]
use serde::Serialize;

/// How far apart two tensors may be: the largest |difference| over the largest |value|, of the whole tensor and of every
/// value head by itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// The limit; at it is still good.
    pub relative: f64,
    /// Where it comes from.
    pub derivation: &'static str,
}

/// A float32 path that goes token by token, against float64 or against another such path.
pub const SEQUENTIAL: Bar = Bar {
    relative: 1e-5,
    derivation: "sums of 128 products at 2^-24 each, whose errors decay with the state: 1e-7 to 1e-6 measured up to \
             8,192 tokens, with a margin of 10",
};

/// A sequential path where nothing decays, for thousands of tokens.
pub const UNDAMPED: Bar = Bar {
    relative: 1e-4,
    derivation: "e^-0.0001 in float32 is off by 2.2e-8, for every token the same: 1.8e-4 over 8,192 tokens for what \
             the first of them wrote, 6e-5 measured for the state; with g = 0 and beta = 2 roundings stay for \
             good, 5e-5 measured",
};

/// The output of a float32 path that takes many tokens at a time, against float64.
pub const CHUNKED_OUT: Bar = Bar {
    relative: 3e-6,
    derivation: "a model of the form on tensor cores, pairs of 16-bit floats, gives up to 1.2e-6 on keys that are nearly \
             parallel, one of plain float32 1.7e-6; a margin of two",
};

/// Its state.
pub const CHUNKED_STATE: Bar = Bar {
    relative: 4e-6,
    derivation: "the same models give up to 2.1e-6, which does not grow with the prompt; a margin of two",
};

/// A path that takes many tokens at a time, where next to nothing decays.
pub const CHUNKED_UNDAMPED: Bar = Bar {
    relative: 1e-5,
    derivation: "what each of 256 chunks rounds away stays for good: at 8,192 tokens 4.2e-6 measured for the state on \
             nearly parallel keys with g = -0.0001, 3.5e-6 with g = 0 and beta = 2",
};

/// The same on keys that are all equal.
pub const CHUNKED_REPEATED: Bar = Bar {
    relative: 5e-5,
    derivation: "the inverse of I + A has entries as large as its sums of 32 of them, which cancel: up to 1.7e-5 by forward \
             substitution in a model, 7.2e-6 measured",
};

/// Any other float32 path.
pub const GENERAL: Bar = Bar {
    relative: 1e-4,
    derivation: "the chunked form inverts I + A, which costs a factor of ten on nearly parallel keys",
};

/// A result that somebody stored as float16.
pub const STORED_F16: Bar = Bar {
    relative: 2e-3,
    derivation: "rounding the stored value gives 2^-11 = 4.9e-4; who stores float16 multiplied with 11 bits too",
};

/// A result that somebody stored as bfloat16.
pub const STORED_BF16: Bar = Bar {
    relative: 1e-2,
    derivation: "rounding the stored value gives 2^-8 = 3.9e-3; who stores bfloat16 multiplied with 8 bits too",
};
