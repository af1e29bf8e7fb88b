//! The report for people.
#![forbid(unsafe_code)]
use std::fmt::Write;

use super::Facts;
use host::probe::{Chains, LaunchCost, Rate};

/// All of it. Writing to a string does not fail.
pub fn text(facts: &Facts) -> String {
    let mut text =
        format!("GPU: {}\nDate: {}\nCommit: {}\n", facts.gpu, facts.circumstances.date, facts.circumstances.commit);
    products(&mut text, facts);
    rates(&mut text, &facts.rates);
    lasting(&mut text, &facts.lasting);
    launches(&mut text, &facts.launches);
    text
}

fn products(text: &mut String, facts: &Facts) {
    let _ = writeln!(text, "\nProducts 16 x 8 x 16 of halves added in float32, card against emulation, bit for bit:");
    let _ = writeln!(text, "  regime      products  in chains of  differ     results  differ");
    for differences in &facts.products {
        let _ = writeln!(
            text,
            "  {:10}  {:8}  {:12}  {:6}  {:10}  {:6}",
            format!("{:?}", differences.regime).to_lowercase(),
            differences.products,
            differences.links,
            differences.products_that_differ,
            differences.results,
            differences.results_that_differ
        );
    }
    let total: usize = facts.products.iter().map(|differences| differences.results).sum();
    let differ: usize = facts.products.iter().map(|differences| differences.results_that_differ).sum();
    let _ = match (facts.agreed, facts.exact) {
        (true, _) => writeln!(text, "  {total} results, every bit agrees"),
        (false, true) => writeln!(text, "  DIFFERS: {differ} of {total} results"),
        (false, false) => writeln!(
            text,
            "  {differ} of {total} results differ, which is no fault: the emulation rounds as cards from compute capability \
             9.0 on do"
        ),
    };
    for differences in facts.products.iter().filter(|differences| !differences.first.is_empty()) {
        let _ = writeln!(text, "  first of {:?}, chains of {}:", differences.regime, differences.links);
        for difference in &differences.first {
            let _ = writeln!(text, "    {difference}");
        }
    }
}

fn rates(text: &mut String, rates: &[Rate]) {
    let _ = writeln!(text, "\nRates, by the clock of a multiprocessor:");
    let _ = writeln!(text, "  blocks  warps  chains  cycles a product  slowest block  TFLOP/s     MHz");
    for rate in rates {
        let _ = writeln!(
            text,
            "  {:6}  {:5}  {:6}  {:16.2}  {:13.2}  {:7.1}  {:6.0}{}",
            rate.load.blocks,
            rate.load.warps,
            rate.load.side_by_side(),
            rate.cycles_per_product,
            rate.cycles_per_product_most,
            rate.teraflops,
            rate.megahertz,
            if rate.load.chains == Chains::One && rate.load.warps == 1 { "  (latency)" } else { "" }
        );
    }
    let _ =
        writeln!(text, "  Cycles from one product of a scheduler to its next; a multiprocessor has four schedulers.");
}

fn lasting(text: &mut String, rates: &[Rate]) {
    let clocks = || rates.iter().map(|rate| rate.megahertz);
    if let (Some(first), Some(last)) = (rates.first(), rates.last()) {
        let _ = writeln!(
            text,
            "\nUnder load, {} launches of {} blocks of {} warps: {:.0} MHz at first, {:.0} at last, {:.0} at least; {:.1} \
             TFLOP/s at first, {:.1} at last",
            rates.len(),
            first.load.blocks,
            first.load.warps,
            first.megahertz,
            last.megahertz,
            clocks().fold(f64::INFINITY, f64::min),
            first.teraflops,
            last.teraflops
        );
    }
}

fn launches(text: &mut String, costs: &[LaunchCost]) {
    let _ =
        writeln!(text, "\nEmpty kernels one after another, microseconds between events around them, median (least):");
    for behind_work in [false, true] {
        let place = if behind_work { "Behind other work" } else { "On a device at rest" };
        let _ = writeln!(text, "  {place}:");
        let mut ways: Vec<&str> = Vec::new();
        for cost in costs.iter().filter(|cost| cost.behind_work == behind_work) {
            if !ways.contains(&cost.how) {
                ways.push(cost.how);
            }
        }
        for how in ways {
            let of_way = costs.iter().filter(|cost| cost.behind_work == behind_work && cost.how == how);
            let cells: Vec<String> = of_way.map(cell).collect();
            let _ = writeln!(text, "    {how:44}  {}", cells.join("   "));
        }
    }
}

fn cell(cost: &LaunchCost) -> String {
    match (cost.microseconds, cost.microseconds_least) {
        (Some(median), Some(least)) => format!("{}: {median:.2} ({least:.2})", cost.kernels),
        _ => format!("{}: refused: {}", cost.kernels, cost.refused.as_deref().unwrap_or("no sample")),
    }
}
