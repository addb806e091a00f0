//! One plot, drawn as SVG by `plotters`.
//!
//! Defines the layout: the title above, the legend on the right, colours and shapes. The SVG has the colours of the light
//! page; the page's style sheet replaces each by a variable ([`colours`]) with a different value on a dark page.

use super::axis::Axis;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width of the drawing in its units, which are small because coordinates are whole numbers. The page scales it.
const WIDTH: u32 = 1240;
const HEIGHT: u32 = 740;
/// Left end of the legend.
const LEGEND: u32 = 875;
/// Height available to the legend below the title.
const LEGEND_HEIGHT: usize = 660;
const TEXT: i32 = 30;
/// Minimum font size of a legend.
const SMALLEST: i32 = 14;
/// Approximate width of a character relative to the font size. Only the browser can measure text.
const CHARACTER: f64 = 0.45;

/// Text, lines of the axes, and the grid.
const INK: RGBColor = RGBColor(0x22, 0x26, 0x2b);
const MUTED: RGBColor = RGBColor(0x6b, 0x72, 0x7b);
const GRID: RGBColor = RGBColor(0xe1, 0xe4, 0xe8);
/// Colours of the series, on a light page and on a dark one. They remain distinct for colour-blind readers, which a test measures.
const SERIES: [(RGBColor, &str); 8] = [
    (RGBColor(0x00, 0x55, 0xaa), "#66bbff"),
    (RGBColor(0xdd, 0x66, 0x11), "#ffdd33"),
    (RGBColor(0x66, 0x11, 0x11), "#ff77aa"),
    (RGBColor(0x44, 0x99, 0xdd), "#1166ee"),
    (RGBColor(0xaa, 0x33, 0x00), "#886600"),
    (RGBColor(0x00, 0x33, 0x66), "#22ffee"),
    (RGBColor(0xaa, 0x00, 0xff), "#cc1188"),
    (RGBColor(0x88, 0x88, 0x88), "#88aa00"),
];
/// Ink, muted text and grid on a dark page.
const DARK: [(RGBColor, &str); 3] = [(INK, "#e8eaed"), (MUTED, "#a3abb5"), (GRID, "#363c44")];

/// Subject of a line: our calls, a floor (dashed) or another system (thinner).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    Calls,
    Floor,
    Peer,
}

/// One line of a plot.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) line: Line,
    pub(crate) points: Vec<(f64, f64)>,
    /// Places on the horizontal axis with the minimum and maximum there.
    pub(crate) ranges: Vec<(f64, f64, f64)>,
    /// Text below each point; empty for none.
    pub(crate) notes: Vec<String>,
    /// True if points are marked. Curves with many points have no marks.
    pub(crate) is_marked: bool,
}

/// A plot, ready to be drawn.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
}

/// Colour and shape of a series. The shape distinguishes series that share a colour.
#[derive(Debug, Clone, Copy)]
struct Look {
    colour: RGBColor,
    shape: usize,
}

impl Look {
    /// Returns the style of a series. The first 32 series of a plot have different ones.
    const fn of(at: usize) -> Self {
        Self { colour: SERIES[at % SERIES.len()].0, shape: (at + at / SERIES.len()) % 4 }
    }

    /// Returns the mark of a point at this place.
    fn mark(self, (x, y): (i32, i32)) -> Polygon<(i32, i32)> {
        let around: &[(i32, i32)] = match self.shape {
            0 => &[(-8, -3), (-3, -8), (3, -8), (8, -3), (8, 3), (3, 8), (-3, 8), (-8, 3)],
            1 => &[(0, -11), (11, 8), (-11, 8)],
            2 => &[(0, -11), (11, 0), (0, 11), (-11, 0)],
            _ => &[(0, 11), (11, -8), (-11, -8)],
        };
        Polygon::new(
            around.iter().map(|(right, down)| (x + right, y + down)).collect::<Vec<_>>(),
            self.colour,
        )
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

impl Plot {
    /// Draws the plot as an SVG element.
    ///
    /// # Errors
    /// Returns errors of the library. Writing to memory gives it no cause to fail.
    pub(crate) fn svg(&self) -> Result<String, String> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| format!("cannot draw \"{}\": {error}", self.title))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Drawn {
        let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
        root.draw(&Text::new(self.title.clone(), (20, 12), text(TEXT + 8, INK)))?;
        let (left, right) = root.margin(64, 0, 0, 0).split_horizontally(LEGEND);
        let mut chart = ChartBuilder::on(&left)
            .margin(16)
            .x_label_area_size(104)
            .y_label_area_size(138)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .axis_style(MUTED)
            .label_style(text(TEXT, MUTED))
            .axis_desc_style(text(TEXT, INK))
            .x_desc(self.x.title.as_str())
            .y_desc(self.y.title.as_str())
            .draw()?;
        for (at, series) in self.series.iter().enumerate() {
            self.draw_series(&mut chart, series, Look::of(at))?;
        }
        self.draw_legend(&right)?;
        root.present()?;
        Ok(())
    }

    fn draw_series(&self, chart: &mut Chart<'_, '_>, series: &Series, look: Look) -> Drawn {
        let Look { colour, .. } = look;
        let place = |(x, y): (f64, f64)| (self.x.place(x), self.y.place(y));
        let points: Vec<_> = series.points.iter().copied().map(place).collect();
        let thin = colour.mix(0.55).stroke_width(3);
        let range =
            |&(x, low, high): &(f64, f64, f64)| PathElement::new([place((x, low)), place((x, high))], thin);
        chart.draw_series(series.ranges.iter().map(range))?;
        let line = points.iter().copied();
        match series.line {
            Line::Calls => chart.draw_series(LineSeries::new(line, colour.stroke_width(5)))?,
            Line::Peer => chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?,
            Line::Floor => chart.draw_series(DashedLineSeries::new(line, 14, 9, colour.stroke_width(3)))?,
        };
        if series.is_marked {
            chart.draw_series(points.iter().map(|&at| EmptyElement::at(at) + look.mark((0, 0))))?;
        }
        let note = |(at, note): (&(f64, f64), &String)| {
            let style = text(TEXT - 2, INK).pos(Pos::new(HPos::Left, VPos::Top));
            EmptyElement::at(*at) + Text::new(note.clone(), (8, 10), style)
        };
        chart.draw_series(points.iter().zip(&series.notes).map(note))?;
        Ok(())
    }

    /// Draws a sample and the name of each line, one below the other, and smaller if there are many.
    fn draw_legend(&self, area: &Area<'_>) -> Drawn {
        let width = f64::from(WIDTH - LEGEND - 80);
        let names = |size: i32| self.series.iter().map(move |series| wrapped(&series.name, width, size));
        let is_low = |size: i32| {
            let height: usize = names(size).map(|lines| 1 + 3 * lines.len()).sum();
            height * usize::try_from(size).unwrap_or(usize::MAX) / 2 <= LEGEND_HEIGHT
        };
        let size = (SMALLEST..TEXT).rev().find(|size| is_low(*size)).unwrap_or(SMALLEST);
        let size = if is_low(TEXT) { TEXT } else { size };
        let mut y = size;
        for ((at, series), lines) in self.series.iter().enumerate().zip(names(size)) {
            let look = Look::of(at);
            let colour = look.colour;
            match series.line {
                Line::Calls | Line::Peer => {
                    let width = if series.line == Line::Calls { 5 } else { 2 };
                    area.draw(&PathElement::new([(10, y), (64, y)], colour.stroke_width(width)))?;
                }
                Line::Floor => {
                    for x in [10, 33, 56] {
                        area.draw(&PathElement::new([(x, y), (x + 12, y)], colour.stroke_width(3)))?;
                    }
                }
            }
            if series.is_marked {
                area.draw(&look.mark((37, y)))?;
            }
            for line in lines {
                let style = text(size, INK).pos(Pos::new(HPos::Left, VPos::Center));
                area.draw(&Text::new(line, (78, y), style))?;
                y += size * 5 / 4;
            }
            y += size / 2;
        }
        Ok(())
    }
}

/// Returns each colour of the drawings: its CSS variable, the light value written in the SVG, and the dark value.
pub(crate) fn colours() -> Vec<(String, String, &'static str)> {
    let written = |RGBColor(red, green, blue): RGBColor| format!("#{red:02X}{green:02X}{blue:02X}");
    let all = DARK.into_iter().chain(SERIES).enumerate();
    all.map(|(at, (light, dark))| (format!("--drawn-{at}"), written(light), dark)).collect()
}

fn text(size: i32, colour: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&colour)
}

/// Wraps a name into lines of at most `width` units in a font of this size. A longer word is not split.
fn wrapped(name: &str, width: f64, size: i32) -> Vec<String> {
    let fits = |line: &str| super::axis::as_f64(line.chars().count()) * CHARACTER * f64::from(size) <= width;
    let mut lines = vec![String::new()];
    for word in name.split(' ') {
        let last = lines.last_mut().map(std::mem::take).unwrap_or_default();
        let longer = if last.is_empty() { word.to_owned() } else { format!("{last} {word}") };
        lines.pop();
        if last.is_empty() || fits(&longer) {
            lines.push(longer);
        } else {
            lines.extend([last, word.to_owned()]);
        }
    }
    lines
}
