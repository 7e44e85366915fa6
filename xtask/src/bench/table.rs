//! Figures as people and programs read them: medians, ratios within a round, a table, JSON.

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
    /// What the median shall not be over.
    aim: Option<f64>,
    /// Why there are no figures.
    failure: Option<String>,
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
        Row { aim: Some(aim), ..self }
    }

    /// Figures that are none if something failed: those of the rounds before tell half of it.
    pub fn unless(self, failure: Option<String>) -> Row {
        let figures = if failure.is_some() { Vec::new() } else { self.figures };
        Row { figures, failure, ..self }
    }

    /// Whether the median is over its aim; `None` without one, and without figures.
    fn is_over(&self) -> Option<bool> {
        Some(median(&self.figures)? > self.aim?)
    }

    pub fn ratio(&self) -> Option<f64> {
        let pairs = self.figures.iter().zip(self.against.as_ref()?);
        median(&pairs.map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
    }
}

/// Prints it as a table of Markdown.
pub fn print(table: &Table) {
    println!("| what | median | best | {} |", table.against);
    println!("| --- | --- | --- | --- |");
    for row in &table.rows {
        let Some(median) = median(&row.figures) else {
            let why = row.failure.as_ref().map(|why| format!(": {}", why.replace('|', "/")));
            println!("| {} | not possible here{} | | |", row.name, why.unwrap_or_default());
            continue;
        };
        let best = match row.unit {
            "us" | "ms" | "s" | "B" | "to 1" | "" => {
                row.figures.iter().copied().fold(f64::INFINITY, f64::min)
            }
            _ => row.figures.iter().copied().fold(0.0, f64::max),
        };
        let ratio = row.ratio().map(|ratio| format!("{ratio:.2}"));
        let over = row.aim.filter(|_| row.is_over() == Some(true));
        let over = over.map(|aim| format!("over its aim of {aim} {}", row.unit));
        let ratio = ratio.or(over).unwrap_or_default();
        println!(
            "| {} | {median:.2} {unit} | {best:.2} {unit} | {ratio} |",
            row.name,
            unit = row.unit
        );
    }
}

/// Prints every figure of all tables as JSON.
pub fn print_json(tables: &[Table]) {
    let rows: Vec<String> = tables
        .iter()
        .flat_map(|table| &table.rows)
        .map(|row| {
            let ratio = row.ratio().map_or("null".into(), |ratio| format!("{ratio:.4}"));
            let over = row.is_over().map_or("null".into(), |over| over.to_string());
            let failure = serde_json::Value::from(row.failure.clone());
            format!(
                "{{\"what\":{:?},\"unit\":{:?},\"figures\":{:?},\"ratio\":{ratio},\
                 \"over_aim\":{over},\"failure\":{failure}}}",
                row.name, row.unit, row.figures
            )
        })
        .collect();
    println!("[{}]", rows.join(","));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_over_its_aim_is_marked() {
        let row = |figures: &[f64]| Row::plain("a", "ms", figures.to_vec());
        assert_eq!(row(&[1.0, 9.0, 2.0]).at_most(5.0).is_over(), Some(false), "the median counts");
        assert_eq!(row(&[6.0, 9.0, 2.0]).at_most(5.0).is_over(), Some(true));
        assert_eq!(row(&[6.0]).is_over(), None);
        assert_eq!(row(&[]).at_most(5.0).is_over(), None);
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
