//! Time and ratio against tokens, as SVG.
#![forbid(unsafe_code)]
use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::super::paths::Path;
use super::report::Row;

const SIZE: (u32, u32) = (900, 1000);
/// Apart in brightness as well as in colour.
const COLOURS: [RGBColor; 5] =
    [RGBColor(0, 90, 180), RGBColor(225, 110, 0), RGBColor(30, 145, 70), RGBColor(150, 60, 160), RGBColor(90, 90, 90)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A path's measured rows with one number of multiprocessors: the fewer, the paler.
struct Line<'a> {
    name: String,
    colour: RGBAColor,
    rows: Vec<&'a Row>,
}

/// The picture, or what kept it from being drawn: without a single time there is none.
pub fn svg(rows: &[Row]) -> Result<String, Box<dyn Error>> {
    let lines = lines(rows);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (above, below) = root.split_vertically(SIZE.1 * 3 / 5);
        times(&above, &lines)?;
        ratios(&below, &lines)?;
        root.present()?;
    }
    Ok(text)
}

fn lines(rows: &[Row]) -> Vec<Line<'_>> {
    let most = rows.iter().filter_map(|row| row.multiprocessors).max();
    let mut paths: Vec<Path> = Vec::new();
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in rows.iter().filter(|row| row.time.is_some()) {
        let index = paths.iter().position(|&path| path == row.path).unwrap_or_else(|| {
            paths.push(row.path);
            paths.len() - 1
        });
        let mut name = row.path.to_string();
        if row.multiprocessors != most
            && let Some(count) = row.multiprocessors
        {
            name += &format!(", {count} SMs");
        }
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.rows.push(row),
            None => {
                let colour = COLOURS[index % COLOURS.len()];
                let share =
                    row.multiprocessors.zip(most).map_or(1.0, |(count, most)| f64::from(count) / f64::from(most));
                lines.push(Line { name, colour: colour.mix(0.25 + 0.75 * share), rows: vec![row] });
            }
        }
    }
    lines
}

/// Medians with a bar from quartile to quartile, both axes logarithmic.
fn times(area: &Area<'_>, lines: &[Line<'_>]) -> Result<(), Box<dyn Error>> {
    let times = || lines.iter().flat_map(|line| &line.rows).filter_map(|row| row.time);
    let (low, high) = (times().map(|time| time.lower_quartile), times().map(|time| time.upper_quartile));
    let (low, high) = (low.fold(f64::INFINITY, f64::min), high.fold(0.0, f64::max));
    let mut chart = ChartBuilder::on(area)
        .caption("Time of a call", ("sans-serif", 20))
        .margin(15)
        .x_label_area_size(40)
        .y_label_area_size(75)
        .build_cartesian_2d(token_range(lines), (low / 1.5..high * 1.5).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("tokens")
        .y_desc("microseconds")
        .x_label_formatter(&tokens_at)
        .y_label_formatter(&|time| format!("{time}"))
        .draw()?;
    for line in lines {
        let colour = line.colour;
        let median = |row: &&Row| row.time.map(|time| (place(row), time.median));
        chart
            .draw_series(LineSeries::new(line.rows.iter().filter_map(median), colour.stroke_width(2)))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
        chart.draw_series(line.rows.iter().filter_map(median).map(|at| Circle::new(at, 3, colour.filled())))?;
        let spread = line.rows.iter().filter_map(|row| {
            let time = row.time?;
            Some(PathElement::new([(place(row), time.lower_quartile), (place(row), time.upper_quartile)], colour))
        });
        chart.draw_series(spread)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    Ok(())
}

/// How many times as fast as the sequential path.
fn ratios(area: &Area<'_>, lines: &[Line<'_>]) -> Result<(), Box<dyn Error>> {
    let most = lines.iter().flat_map(|line| &line.rows).filter_map(|row| row.times_sequential).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("Times as fast as the sequential path", ("sans-serif", 20))
        .margin(15)
        .x_label_area_size(40)
        .y_label_area_size(75)
        .build_cartesian_2d(token_range(lines), 0.0..most * 1.1)?;
    chart.configure_mesh().light_line_style(TRANSPARENT).x_desc("tokens").x_label_formatter(&tokens_at).draw()?;
    for line in lines {
        let colour = line.colour;
        let ratio = |row: &&Row| row.times_sequential.map(|ratio| (place(row), ratio));
        chart.draw_series(LineSeries::new(line.rows.iter().filter_map(ratio), colour.stroke_width(2)))?;
        chart.draw_series(line.rows.iter().filter_map(ratio).map(|at| Circle::new(at, 3, colour.filled())))?;
    }
    Ok(())
}

/// Tokens stand on a linear axis of their binary logarithm, so that its marks are powers of two.
fn place(row: &Row) -> f64 {
    (row.tokens as f64).log2()
}

fn tokens_at(place: &f64) -> String {
    format!("{:.0}", place.exp2())
}

fn token_range(lines: &[Line<'_>]) -> Range<f64> {
    let places = || lines.iter().flat_map(|line| &line.rows).map(|row| place(row));
    places().fold(f64::INFINITY, f64::min) - 0.5..places().fold(0.0, f64::max) + 0.5
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::agreement::Agreement;
    use crate::commands::bench::statistics::Statistics;
    use crate::commands::report::Against;
    use host::Kernel;
    use host::compare::{Tensor, bars, compare};
    use host::{HeadMap, Heads};

    fn row(kernel: Kernel, tokens: usize, multiprocessors: u32) -> Row {
        let heads = Heads::new(1, 1, HeadMap::Grouped).unwrap();
        let out = compare::<f64, f32>(Tensor::Out, &heads, &[], &[]);
        let (against, bar) = (Against::Float64, bars::SEQUENTIAL);
        let median = tokens as f64 * 132.0 / f64::from(multiprocessors);
        let (lower_quartile, upper_quartile) = (0.9 * median, 1.2 * median);
        Row {
            tokens,
            path: Path::Cuda(kernel),
            multiprocessors: Some(multiprocessors),
            agreement: Agreement { against, tokens, out, state: None, bar, agreed: true },
            time: Some(Statistics {
                samples: 1,
                median,
                minimum: median,
                lower_quartile,
                upper_quartile,
                maximum: median,
            }),
            nanoseconds_per_token: None,
            times_sequential: Some(1.5),
            samples: Vec::new(),
        }
    }

    #[test]
    fn a_line_for_each_path_and_number_of_multiprocessors() {
        let (a, b) = (Kernel::RecurrentByKeyHead, Kernel::RecurrentByColumn);
        let rows = [row(a, 32, 132), row(b, 32, 132), row(a, 32, 64), row(b, 32, 64), row(a, 96, 64)];
        let lines = lines(&rows);
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        let [a, b] = [a, b].map(|kernel| format!("cuda {}", kernel.name()));
        assert_eq!(names, [a.clone(), b.clone(), format!("{a}, 64 SMs"), format!("{b}, 64 SMs")]);
        assert_eq!(lines[2].rows.len(), 2);
        assert_eq!(lines[0].colour.rgb(), lines[2].colour.rgb());
        assert_ne!(lines[0].colour.rgb(), lines[1].colour.rgb());
        let picture = svg(&rows).unwrap();
        assert!(names.iter().all(|name| picture.contains(name)));
    }
}
