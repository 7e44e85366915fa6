//! Figures as people and programs read them: medians, ratios within a round, a table, JSON.

use serde_json::json;

/// What figures are compared with, and their rows.
pub struct Table {
    pub against: &'static str,
    pub rows: Vec<Row>,
}

/// One row: what was measured, one figure a round.
pub struct Row {
    pub name: String,
    unit: &'static str,
    pub figures: Vec<f64>,
    /// Figures of the same rounds to divide by.
    against: Option<Vec<f64>>,
    aim: Option<Aim>,
    /// Why there are no figures.
    failure: Option<String>,
}

/// What a row's median, or the median of its ratios, shall be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Aim {
    AtMost(f64),
    AtLeast(f64),
    RatioAtMost(f64),
    RatioAtLeast(f64),
}

fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

impl Row {
    /// Figures to be compared with nothing.
    pub fn plain(name: impl Into<String>, unit: &'static str, figures: Vec<f64>) -> Row {
        Row { name: name.into(), unit, figures, against: None, aim: None, failure: None }
    }

    pub fn ratio_to(self, against: &[f64]) -> Row {
        Row { against: Some(against.to_vec()), ..self }
    }

    pub fn at_most(self, aim: f64) -> Row {
        self.aims(Some(Aim::AtMost(aim)))
    }

    pub fn aims(self, aim: Option<Aim>) -> Row {
        Row { aim, ..self }
    }

    /// Figures that are none if something failed: those of the rounds before tell half of it.
    pub fn unless(self, failure: Option<String>) -> Row {
        let figures = if failure.is_some() { Vec::new() } else { self.figures };
        Row { figures, failure, ..self }
    }

    /// Whether it misses its aim; `None` without one, and without figures.
    pub fn is_missed(&self) -> Option<bool> {
        Some(match self.aim? {
            Aim::AtMost(aim) => median(&self.figures)? > aim,
            Aim::AtLeast(aim) => median(&self.figures)? < aim,
            Aim::RatioAtMost(aim) => self.ratio()? > aim,
            Aim::RatioAtLeast(aim) => self.ratio()? < aim,
        })
    }

    pub fn ratio(&self) -> Option<f64> {
        let pairs = self.figures.iter().zip(self.against.as_ref()?);
        median(&pairs.map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
    }

    /// The aim in words, marked where it is missed.
    fn aim_in_words(&self) -> String {
        let aim = match self.aim {
            None => return String::new(),
            Some(Aim::AtMost(aim)) => format!("at most {aim} {}", self.unit),
            Some(Aim::AtLeast(aim)) => format!("at least {aim} {}", self.unit),
            Some(Aim::RatioAtMost(aim)) => format!("ratio at most {aim}"),
            Some(Aim::RatioAtLeast(aim)) => format!("ratio at least {aim}"),
        };
        match self.is_missed() {
            None => format!("{}, not judged", aim.trim_end()),
            Some(false) => aim.trim_end().to_owned(),
            Some(true) => format!("{}, **missed**", aim.trim_end()),
        }
    }

    /// The best and the worst round: of times and sizes the least is the best.
    fn best_and_worst(&self) -> (f64, f64) {
        let least = self.figures.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.figures.iter().copied().fold(0.0, f64::max);
        match self.unit {
            "us" | "ms" | "s" | "B" | "to 1" | "" => (least, most),
            _ => (most, least),
        }
    }
}

/// Prints it as a table of Markdown.
pub fn print(table: &Table) {
    println!("| what | median | best | worst | {} | aim |", table.against);
    println!("| --- | --- | --- | --- | --- | --- |");
    for row in &table.rows {
        println!("{}", line(row));
    }
}

fn line(row: &Row) -> String {
    let aim = row.aim_in_words();
    let Some(median) = median(&row.figures) else {
        let why = row.failure.as_ref().map(|why| format!(": {}", why.replace('|', "/")));
        let why = why.unwrap_or_default();
        return format!("| {} | not possible here{why} | | | | {aim} |", row.name);
    };
    let (best, worst) = row.best_and_worst();
    let ratio = match row.ratio() {
        Some(ratio) => format!("{ratio:.2}"),
        None if row.against.is_some() => "its peer is not to be had here".to_owned(),
        None => String::new(),
    };
    format!(
        "| {} | {median:.2} {unit} | {best:.2} | {worst:.2} | {ratio} | {aim} |",
        row.name,
        unit = row.unit
    )
}

/// Prints every figure of all tables as JSON.
pub fn print_json(tables: &[Table]) {
    let rows = tables.iter().flat_map(|table| &table.rows).map(|row| {
        json!({
            "what": row.name,
            "unit": row.unit,
            "figures": row.figures,
            "median": median(&row.figures),
            "ratio": row.ratio(),
            "aim": row.aim.map(|_| row.aim_in_words()),
            "missed": row.is_missed(),
            "failure": row.failure,
        })
    });
    println!("{}", serde_json::Value::Array(rows.collect()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_misses_its_aim_is_marked() {
        let row = |figures: &[f64]| Row::plain("a", "ms", figures.to_vec());
        let missed = |figures: &[f64], aim| row(figures).aims(Some(aim)).is_missed();
        assert_eq!(missed(&[1.0, 9.0, 2.0], Aim::AtMost(5.0)), Some(false), "the median counts");
        assert_eq!(missed(&[6.0, 9.0, 2.0], Aim::AtMost(5.0)), Some(true));
        assert_eq!(missed(&[6.0, 9.0, 2.0], Aim::AtLeast(7.0)), Some(true));
        assert_eq!(row(&[6.0]).is_missed(), None);
        assert_eq!(missed(&[], Aim::AtMost(5.0)), None);
        let beside = |aim| row(&[6.0, 8.0, 7.0]).ratio_to(&[3.0, 2.0, 7.0]).aims(Some(aim));
        assert_eq!(beside(Aim::RatioAtLeast(2.0)).is_missed(), Some(false));
        assert_eq!(beside(Aim::RatioAtMost(1.9)).is_missed(), Some(true));
        let said = "| a | 7.00 ms | 6.00 | 8.00 | 2.00 | ratio at most 1.9, **missed** |";
        assert_eq!(line(&beside(Aim::RatioAtMost(1.9))), said);
    }

    #[test]
    fn a_row_without_its_peer_says_so_and_is_not_judged() {
        let row = Row::plain("a", "us", vec![1.0]).ratio_to(&[]).aims(Some(Aim::RatioAtMost(1.5)));
        let said = "| a | 1.00 us | 1.00 | 1.00 | its peer is not to be had here | \
                    ratio at most 1.5, not judged |";
        assert_eq!(line(&row), said);
    }

    #[test]
    fn a_row_that_failed_has_no_figures() {
        let row = |failure: Option<&str>| {
            Row::plain("a", "ms", vec![1.0]).ratio_to(&[2.0]).unless(failure.map(str::to_owned))
        };
        assert_eq!(row(None).ratio(), Some(0.5));
        assert_eq!((row(Some("no")).figures.len(), row(Some("no")).ratio()), (0, None));
    }
}
