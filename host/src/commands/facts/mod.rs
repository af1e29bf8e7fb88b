//! `host facts`: what the kernels take for granted of a card, asked of the card itself.
//!
//! Whether its tensor cores have the emulation's every bit, how fast they are, how its clock holds under load, and what
//! launches cost. Needs a GPU; anyone can repeat it on theirs.
#![forbid(unsafe_code)]
mod text;

use anyhow::{Context, bail};
use serde::Serialize;

use super::bench::circumstances::Circumstances;
use super::bench::record::put;
use super::paths::{Gpu, Machine};
use super::{Verdict, print, print_json};
use crate::cli::FactsArguments;
use host::probe::{CHAIN_LINKS, Chains, Differences, EXACT_CAPABILITY, Fragments, LaunchCost, Load, Rate, Regime};

/// Turns of a loop that measures a rate: a few milliseconds.
const TURNS: u32 = 20_000;
/// Turns of one launch of a lasting load: some 50 ms.
const LASTING_TURNS: u32 = 400_000;
/// Launches of a lasting load: two seconds and more.
const LASTING_LAUNCHES: usize = 40;
/// Warps of a block: one for the latency alone, then one, two and four for each scheduler.
const WARPS: [u32; 3] = [4, 8, 16];

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
struct Facts {
    command: &'static str,
    version: &'static str,
    circumstances: Circumstances,
    gpu: Gpu,
    seed: u64,
    products: Vec<Differences>,
    /// Whether the card is one of those that the emulation follows, so that a difference is a fault.
    exact: bool,
    /// Whether every bit agreed.
    agreed: bool,
    rates: Vec<Rate>,
    /// Launch after launch of the same load on every multiprocessor.
    lasting: Vec<Rate>,
    launches: Vec<LaunchCost>,
}

/// Runs the command.
///
/// # Errors
/// If there is no GPU, it is below compute capability 8.0, or the record cannot be written.
pub fn run(arguments: &FactsArguments) -> anyhow::Result<Verdict> {
    let circumstances = Circumstances::here();
    let machine = Machine::open();
    let gpu = match machine.gpu() {
        Ok(gpu) => gpu,
        Err(reason) => bail!("facts are those of a GPU, and there is none: {reason}"),
    };
    let facts = find(arguments, &machine, gpu, circumstances)?;
    if let Some(folder) = &arguments.record {
        std::fs::create_dir_all(folder).with_context(|| format!("--record: making {}", folder.display()))?;
        put(folder, "facts.json", &(serde_json::to_string_pretty(&facts)? + "\n"))?;
        put(folder, "facts.txt", &text::text(&facts))?;
    }
    if arguments.json {
        print_json(&facts)?
    } else {
        print(&text::text(&facts))?
    }
    Ok(verdict(&facts))
}

/// A difference is a fault only where the emulation is that of the card.
fn verdict(facts: &Facts) -> Verdict {
    if facts.exact && !facts.agreed { Verdict::Disagreed } else { Verdict::Agreed }
}

fn find(
    arguments: &FactsArguments,
    machine: &Machine,
    gpu: Gpu,
    circumstances: Circumstances,
) -> anyhow::Result<Facts> {
    let device = machine.device().context("the GPU is gone")?;
    let mut products = Vec::new();
    for fragments in all_fragments(arguments.products as usize, arguments.seed) {
        let emulated = host::emulated::multiply(&fragments)?;
        products.push(fragments.compare(&emulated, &device.multiply(&fragments)?));
    }
    let rates =
        loads(gpu.multiprocessors).into_iter().map(|load| device.tensor_rate(load)).collect::<Result<_, _>>()?;
    let load = Load { blocks: gpu.multiprocessors, warps: 8, chains: Chains::SideBySide, turns: LASTING_TURNS };
    let lasting = (0..LASTING_LAUNCHES).map(|_| device.tensor_rate(load)).collect::<Result<_, _>>()?;
    let launches = device.launch_costs(arguments.samples as usize)?;
    let agreed = products.iter().all(|differences| differences.results_that_differ == 0);
    let exact = gpu.capability >= EXACT_CAPABILITY;
    let (command, version, seed) = ("facts", env!("CARGO_PKG_VERSION"), arguments.seed);
    Ok(Facts { command, version, circumstances, gpu, seed, products, exact, agreed, rates, lasting, launches })
}

/// Products one by one and in chains, of every regime; chains of what is not finite are not finite from their first link on.
fn all_fragments(products: usize, seed: u64) -> impl Iterator<Item = Fragments> {
    Regime::ALL.into_iter().flat_map(move |regime| {
        let chained = (regime != Regime::Infinite).then_some((products / 2 / CHAIN_LINKS, CHAIN_LINKS));
        let alone = if chained.is_some() { products / 2 } else { products };
        [Some((alone, 1)), chained]
            .into_iter()
            .flatten()
            .map(move |(chains, links)| Fragments::seeded(regime, chains, links, seed))
    })
}

/// The latency, then each number of warps on one multiprocessor and on all.
fn loads(multiprocessors: u32) -> Vec<Load> {
    let latency = Load { blocks: 1, warps: 1, chains: Chains::One, turns: TURNS };
    let rates = [1, multiprocessors]
        .into_iter()
        .flat_map(|blocks| WARPS.map(|warps| Load { blocks, warps, chains: Chains::SideBySide, turns: TURNS }));
    // One chain in each of two warps of a scheduler: whether latencies overlap.
    let two = Load { warps: 8, ..latency };
    [latency, two].into_iter().chain(rates).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn facts(capability: u32, agreed: bool) -> Facts {
        let mut products = Vec::new();
        for fragments in all_fragments(64, 1).take(3) {
            let emulated = host::emulated::multiply(&fragments).unwrap();
            let mut actual = emulated.clone();
            if !agreed {
                actual[17] = actual[17].next_up();
            }
            products.push(fragments.compare(&emulated, &actual));
        }
        let rate = |load| Rate {
            load,
            cycles_per_product: 6.7,
            cycles_per_product_most: 7.0,
            teraflops: 600.0,
            megahertz: 1980.0,
        };
        let cost = |kernels, refused: Option<&str>| LaunchCost {
            how: "graph",
            behind_work: false,
            kernels,
            microseconds: refused.is_none().then_some(2.5),
            microseconds_least: refused.is_none().then_some(2.0),
            samples: 5,
            refused: refused.map(str::to_owned),
        };
        Facts {
            command: "facts",
            version: "0",
            circumstances: Circumstances::here(),
            gpu: Gpu {
                name: "a card".to_owned(),
                driver: (12, 8),
                capability,
                multiprocessors: 132,
                shared_bytes_optin: 232_448,
                memory_bytes: 1 << 30,
            },
            seed: 1,
            exact: capability >= EXACT_CAPABILITY,
            agreed,
            products,
            rates: loads(132).into_iter().map(rate).collect(),
            lasting: vec![rate(loads(132)[0]); 2],
            launches: vec![cost(1, None), cost(2, None), cost(3, Some("not in this driver"))],
        }
    }

    #[test]
    fn a_difference_is_a_fault_only_where_the_emulation_is_that_of_the_card() {
        for (capability, agreed, expected) in [
            (90, true, Verdict::Agreed),
            (90, false, Verdict::Disagreed),
            (120, false, Verdict::Disagreed),
            (89, false, Verdict::Agreed),
            (80, true, Verdict::Agreed),
        ] {
            assert_eq!(verdict(&facts(capability, agreed)), expected, "{capability}, {agreed}");
        }
    }

    #[test]
    fn there_are_thousands_of_products_and_a_chain_of_every_regime_that_is_finite() {
        let products: usize = all_fragments(1024, 1).map(|fragments| fragments.products()).sum();
        assert_eq!(products, Regime::ALL.len() * 1024);
        let chains = all_fragments(64, 1).filter(|fragments| fragments.links() == CHAIN_LINKS).count();
        assert_eq!(chains, Regime::ALL.len() - 1);
    }

    #[test]
    fn the_text_says_what_differs_and_what_was_refused() {
        let good = text::text(&facts(90, true));
        assert!(good.contains("a card") && good.contains("every bit agrees"), "{good}");
        assert!(good.contains("6.70") && good.contains("not in this driver"), "{good}");
        let bad = text::text(&facts(90, false));
        assert!(bad.contains("DIFFERS") && bad.contains("product 0 (link 0), row 1, column 1"), "{bad}");
        let other = text::text(&facts(89, false));
        assert!(other.contains("no fault") && !other.contains("DIFFERS"), "{other}");
    }
}
