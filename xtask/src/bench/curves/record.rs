//! The record of curves: JSON with one point a line, which awk(1) reads as well, and what it was
//! measured on.

use super::plan::Plot;
use std::fmt;
use std::process::Command;

/// Points: by message size or queue pairs, and among equals in the order in which they came.
#[derive(Default)]
pub struct Points(Vec<Point>);

struct Point {
    plot: Plot,
    series: String,
    x: u64,
    /// One a round.
    figures: Vec<f64>,
}

impl Points {
    pub fn add(&mut self, plot: Plot, series: &str, x: u64, figure: f64) {
        let known = self.0.iter_mut().find(|p| p.plot == plot && p.series == series && p.x == x);
        match known {
            Some(point) => point.figures.push(figure),
            None => {
                let (series, figures) = (series.to_owned(), vec![figure]);
                let at = self.0.partition_point(|point| point.x <= x);
                self.0.insert(at, Point { plot, series, x, figures });
            }
        }
    }
}

/// When and on what it was measured.
pub struct Stamp {
    machine: String,
    date: String,
    rounds: u32,
}

impl Stamp {
    /// Of this machine, today.
    pub fn now(rounds: u32) -> Stamp {
        let said = |program: &str, argument: &str| {
            let output = Command::new(program).arg(argument).output();
            output.map_or_else(
                |_| "unknown".to_owned(),
                |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            )
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = about.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let cpu = cpu.map_or("unknown CPU", |(_, name)| name.trim());
        let machine = format!("{cpus} CPUs ({cpu}), Linux {}", said("uname", "-r"));
        Stamp { machine, date: said("date", "+%F"), rounds }
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stamp { machine, date, rounds } = self;
        writeln!(f, "{machine}, {date}.")?;
        write!(f, "Medians of {rounds} interleaved rounds, with the least and the greatest.")
    }
}

/// All of it.
pub struct Record {
    pub stamp: Stamp,
    pub points: Points,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stamp { machine, date, rounds } = &self.stamp;
        let text = |text: &str| serde_json::Value::from(text);
        let (machine, date) = (text(machine), text(date));
        writeln!(f, "{{\"machine\":{machine},\"date\":{date},\"rounds\":{rounds},\"points\":[")?;
        for (at, point) in self.points.0.iter().enumerate() {
            let Point { plot, series, x, figures } = point;
            let (plot, series) = (text(plot.name()), text(series));
            let mut sorted = figures.clone();
            sorted.sort_by(f64::total_cmp);
            let (least, most) = (sorted[0], sorted[sorted.len() - 1]);
            let median = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
            let comma = if at == 0 { "" } else { "," };
            writeln!(
                f,
                "{comma}{{\"plot\":{plot},\"series\":{series},\"x\":{x},\"median\":{median:?},\
                 \"least\":{least:?},\"most\":{most:?},\"figures\":{figures:?}}}"
            )?;
        }
        writeln!(f, "]}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_json_with_one_point_a_line() {
        let mut points = Points::default();
        for figure in [3.0, 1.0, 2.0] {
            points.add(Plot::Latency, "a \"b\"", 8, figure);
        }
        points.add(Plot::Latency, "a \"b\"", 4, 5.0);
        points.add(Plot::Latency, "a \"b\"", 4, 7.0);
        let stamp = Stamp { machine: "m".to_owned(), date: "d".to_owned(), rounds: 3 };
        let text = Record { stamp, points }.to_string();
        assert_eq!(text.lines().count(), 4);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let point = &json["points"][1];
        assert_eq!((&point["series"], &point["x"]), (&"a \"b\"".into(), &8.into()));
        assert_eq!(
            (&point["least"], &point["median"], &point["most"]),
            (&1.0.into(), &2.0.into(), &3.0.into())
        );
        assert_eq!(json["points"][0]["median"], 6.0, "of two, the middle; the smaller size first");
    }
}
