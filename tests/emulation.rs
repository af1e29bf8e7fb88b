//! Both kernels in the emulator over every shape: within the bar of float64, the same bits in every order of threads, and
//! the same bits from both kernels.
#![forbid(unsafe_code)]
use host::inputs::{Family, Inputs};
use host::reference::{Expected, Prefixes, reference_f64_at};
use host::{HeadMap, Heads, Kernel};
use tests::{ORDERS, Output, Path, TOKENS, agrees, bars, every_heads, heads, run_in_order, same_bits};

/// The first `tokens` tokens by one kernel.
fn emulate(inputs: &Inputs, tokens: usize, kernel: Kernel, order: u64) -> Output {
    let mut output = Output { out: vec![f32::NAN; inputs.out_len(tokens)], state: vec![f32::NAN; inputs.state_len()] };
    host::emulated::run(inputs.call_first(tokens, &mut output.out, &mut output.state), kernel, order).unwrap();
    output
}

/// What is expected after so many tokens.
fn at(prefixes: &Prefixes, tokens: usize) -> Expected {
    let (out, state) = prefixes.at(tokens).unwrap();
    Expected { out: out.to_vec(), state: state.to_vec() }
}

/// Every length, both kernels, every order.
fn check_heads(heads: Heads, family: Family) {
    let inputs = Inputs::seeded(heads, TOKENS.into_iter().max().unwrap(), family, 3);
    let prefixes = reference_f64_at(&inputs, &TOKENS);
    let kernels = Kernel::RECURRENT.into_iter().filter(|&kernel| Path::Emulated(kernel).takes(&heads));
    for tokens in TOKENS {
        let mut first: Option<Output> = None;
        for kernel in kernels.clone() {
            for order in ORDERS {
                let output = emulate(&inputs, tokens, kernel, order);
                let place = || format!("{kernel:?}, order {order}, {tokens} tokens, {heads:?}, {family}");
                match &first {
                    Some(first) => same_bits(&heads, first, &output).unwrap_or_else(|e| panic!("{}: {e}", place())),
                    None => agrees(&heads, &at(&prefixes, tokens), &output, &bars::SEQUENTIAL)
                        .unwrap_or_else(|e| panic!("{}: {e}", place())),
                }
                first.get_or_insert(output);
            }
        }
    }
}

#[test]
fn every_shape_in_every_order_by_both_kernels() {
    for heads in every_heads() {
        check_heads(heads, Family::Base);
    }
}

/// Decay near 1 and strong, forgotten states, beta 0, 1 and 2, gates above 0.
#[test]
fn every_family_of_gates_by_both_kernels() {
    for family in [Family::Slow, Family::Strong, Family::Reset, Family::Beta, Family::Positive, Family::Real] {
        let heads = heads(2, 6, HeadMap::Tiled);
        let inputs = Inputs::seeded(heads, 41, family, 5);
        let [by_key_head, by_column] =
            Kernel::RECURRENT.map(|kernel| run_in_order(Path::Emulated(kernel), &inputs, ORDERS[2]));
        let expected = tests::expected_of(&inputs);
        agrees(&heads, &expected, &by_key_head, &bars::SEQUENTIAL).unwrap_or_else(|e| panic!("{family}: {e}"));
        same_bits(&heads, &by_key_head, &by_column).unwrap_or_else(|e| panic!("{family}: {e}"));
    }
}

/// The heads of the model that the kernels were written for.
#[test]
fn sixteen_key_heads_and_forty_eight_value_heads() {
    for map in [HeadMap::Grouped, HeadMap::Tiled] {
        let inputs = Inputs::seeded(heads(16, 48, map), 10, Family::Bench, 7);
        let [by_key_head, by_column] =
            Kernel::RECURRENT.map(|kernel| run_in_order(Path::Emulated(kernel), &inputs, ORDERS[1]));
        agrees(&inputs.heads, &tests::expected_of(&inputs), &by_key_head, &bars::SEQUENTIAL).unwrap();
        same_bits(&inputs.heads, &by_key_head, &by_column).unwrap();
    }
}
