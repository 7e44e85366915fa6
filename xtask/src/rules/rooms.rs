//! The rooms that ARCHITECTURE.md tells of: each crate has a row in its table, and each row is of a
//! crate.

use super::workspace::crates;
use std::path::Path;

/// Rooms that have no row, and rows that have no room.
pub fn without_row(root: &Path) -> Vec<String> {
    let page = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap_or_default();
    let rows: Vec<&str> = page.lines().filter_map(row).collect();
    let rooms: Vec<String> = crates(root)
        .iter()
        .filter_map(|room| Some(room.file_name()?.to_string_lossy().into_owned()))
        .collect();
    // Of the fuzzer CONTRIBUTING.md tells.
    let missing = rooms.iter().filter(|room| *room != "fuzz" && !rows.contains(&room.as_str()));
    let missing = missing.map(|room| format!("{room} has no row in the table of rooms"));
    let gone = rows.iter().filter(|row| !rooms.iter().any(|room| room == *row));
    missing.chain(gone.map(|row| format!("the table of rooms has {row}, which is none"))).collect()
}

/// The room that a line of the table is about.
fn row(line: &str) -> Option<&str> {
    line.strip_prefix("| `")?.split_once("` |").map(|(room, _)| room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_without_a_row_is_told_and_a_row_without_a_room() {
        let root = tempfile::tempdir().unwrap();
        for room in ["wire", "shm"] {
            std::fs::create_dir_all(root.path().join("crates").join(room)).unwrap();
            std::fs::write(root.path().join("crates").join(room).join("Cargo.toml"), "").unwrap();
        }
        let page = "| room | one sentence |\n| --- | --- |\n| `wire` | a |\n| `gone` | b |\n\
                    | `tests` | c |\n| `xtask` | d |\n";
        std::fs::write(root.path().join("ARCHITECTURE.md"), page).unwrap();
        let told =
            ["shm has no row in the table of rooms", "the table of rooms has gone, which is none"];
        assert_eq!(without_row(root.path()), told);
    }
}
