//! The products of a probe, emulated.
use super::launch;
use crate::error::Result;
use crate::probe::Fragments;
use cuda_std::emulator::Memory;
use kernels_gpu::kernels::tensor_probe::{Args, KERNEL, PRODUCTS};

/// Every sum of every chain, as the emulation of the tensor cores has it: [`Fragments::results`] elements.
///
/// # Errors
/// [`Error::Emulator`](crate::Error::Emulator): none is known.
pub fn multiply(fragments: &Fragments) -> Result<Vec<f32>> {
    let mut out = vec![f32::NAN; fragments.results()];
    let mut memory = Memory::new();
    let args = Args {
        a: memory.read_only(&fragments.a),
        b: memory.read_only(&fragments.b),
        c: memory.read_only(&fragments.c),
        out: memory.read_write(&mut out),
        clocks: memory.read_write(&mut []),
        links: fragments.links() as u32,
        warps: 1,
    };
    launch(&KERNEL.entries[PRODUCTS], [fragments.chains() as u32, 1], args, &memory, 1)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{CHAIN_LINKS, Regime};
    use cuda_std::float::unpack_f16x2;

    /// The element of a that fragments hold for (row, k), read by the other description of the layout: lane and register.
    fn half(registers: &[u32], index: usize, odd: usize) -> f64 {
        let (low, high) = unpack_f16x2(registers[index]);
        f64::from(if odd == 0 { low } else { high })
    }

    #[test]
    fn integers_are_multiplied_exactly_along_a_chain() {
        let fragments = Fragments::seeded(Regime::Exact, 3, CHAIN_LINKS, 5);
        let out = multiply(&fragments).unwrap();
        for chain in 0..3 {
            for row in 0..16 {
                for column in 0..8 {
                    let lane = row % 8 * 4 + column / 2;
                    let element = lane * 4 + row / 8 * 2 + column % 2;
                    let mut sum = f64::from(fragments.c[chain * 128 + element]);
                    for product in chain * CHAIN_LINKS..(chain + 1) * CHAIN_LINKS {
                        for k in 0..16 {
                            let pair = k % 8 / 2;
                            let a = half(
                                &fragments.a[product * 128..],
                                (row % 8 * 4 + pair) * 4 + row / 8 + k / 8 * 2,
                                k % 2,
                            );
                            let b = half(&fragments.b[product * 64..], (column * 4 + pair) * 2 + k / 8, k % 2);
                            sum += a * b;
                        }
                        assert_eq!(f64::from(out[product * 128 + element]), sum, "{product}: {row}, {column}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_regime_is_what_it_says_and_agrees_with_itself() {
        for regime in Regime::ALL {
            let fragments = Fragments::seeded(regime, 4, 2, 1);
            let out = multiply(&fragments).unwrap();
            let differences = fragments.compare(&out, &out);
            assert_eq!((differences.products, differences.results), (8, 8 * 128), "{regime:?}");
            assert_eq!((differences.products_that_differ, differences.results_that_differ), (0, 0), "{regime:?}");
            assert_eq!(out.iter().all(|sum| sum.is_finite()), regime != Regime::Infinite, "{regime:?}");
            assert!(out.iter().any(|&sum| sum != 0.0), "{regime:?}");
        }
        let inputs = |regime| Fragments::seeded(regime, 4, 2, 1);
        let halves =
            |registers: &[u32]| registers.iter().flat_map(|pair| [pair & 0x7fff, pair >> 16 & 0x7fff]).collect();
        let subnormal: Vec<u32> = halves(&inputs(Regime::Subnormal).a);
        assert!(subnormal.iter().filter(|&&half| half > 0 && half < 0x400).count() > subnormal.len() / 4);
        let zeros: Vec<u32> = halves(&inputs(Regime::Zeros).b);
        assert!(zeros.iter().filter(|&&half| half == 0).count() > zeros.len() / 2);
    }

    #[test]
    fn a_bit_is_found_once_and_shown_with_what_it_was_made_of() {
        let fragments = Fragments::seeded(Regime::Exact, 2, 3, 2);
        let expected = multiply(&fragments).unwrap();
        let mut actual = expected.clone();
        // Row 8 + 1, column 2 * 2 + 1 of the second chain's second product, and what follows from it.
        for product in [4, 5] {
            let sum = &mut actual[product * 128 + (4 + 2) * 4 + 3];
            *sum = sum.next_up();
        }
        let differences = fragments.compare(&expected, &actual);
        assert_eq!((differences.products_that_differ, differences.results_that_differ), (1, 1));
        let first = &differences.first[0];
        assert_eq!((first.product, first.link, first.row, first.column), (4, 1, 9, 5));
        let number = |bits: &str| f64::from(f32::from_bits(u32::from_str_radix(bits, 16).unwrap()));
        let halves = |bits: &str| -> Vec<f64> {
            let half = |bits| f64::from(unpack_f16x2(u32::from_str_radix(bits, 16).unwrap()).0);
            bits.split(' ').map(half).collect()
        };
        let sum: f64 = halves(&first.a).iter().zip(halves(&first.b)).map(|(a, b)| a * b).sum();
        assert_eq!(number(&first.addend) + sum, number(&first.expected));
        assert_eq!(number(&first.actual) as f32, (number(&first.expected) as f32).next_up());
    }

    #[test]
    fn nans_are_equal_and_zeros_of_either_sign_are_not() {
        let fragments = Fragments::seeded(Regime::Zeros, 1, 1, 1);
        let of = |value: f32| vec![value; fragments.results()];
        let differ = |a: f32, b: f32| fragments.compare(&of(a), &of(b)).results_that_differ;
        assert_eq!(differ(f32::NAN, f32::from_bits(0x7fff_ffff)), 0);
        assert_eq!(differ(0.0, -0.0), fragments.results());
        assert_eq!(differ(f32::NAN, 1.0), fragments.results());
    }
}
