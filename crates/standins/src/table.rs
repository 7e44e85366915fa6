//! The table of symbols: `symbols.txt` and its reader. Its head says what each line means.

/// One provider library.
#[derive(Debug, PartialEq, Eq)]
pub struct Library {
    /// File name and soname.
    pub soname: String,
    /// Version nodes, oldest first.
    pub nodes: Vec<VersionNode>,
}

/// One version node.
#[derive(Debug, PartialEq, Eq)]
pub struct VersionNode {
    /// Name, such as `MLX5_1.24`.
    pub name: String,
    /// The node it inherits from.
    pub parent: Option<String>,
    /// Functions and how they fail.
    pub symbols: Vec<Symbol>,
}

/// One function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// Its name.
    pub name: String,
    /// How it fails.
    pub kind: Kind,
    /// Number of its arguments, where our libibverbs may have a function to call instead.
    pub live: Option<usize>,
}

/// How a function fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Returns EOPNOTSUPP.
    Errno,
    /// Returns EPERM.
    Eperm,
    /// Returns −EOPNOTSUPP.
    Negative,
    /// Returns −1 and sets errno.
    MinusOne,
    /// Returns NULL and sets errno.
    Null,
    /// Returns 0.
    Zero,
    /// Returns nothing.
    Void,
    /// Zeroes (first argument, second argument) bytes.
    Clear,
}

impl Library {
    /// In how many nodes `symbol` stands.
    pub fn versions(&self, symbol: &str) -> usize {
        self.nodes.iter().flat_map(|node| &node.symbols).filter(|s| s.name == symbol).count()
    }

    /// The node of the default version of `symbol`: the newest that has it.
    pub fn default_node(&self, symbol: &str) -> Option<&str> {
        let has = |node: &&VersionNode| node.symbols.iter().any(|s| s.name == symbol);
        self.nodes.iter().rev().find(has).map(|node| node.name.as_str())
    }
}

/// Reads the table; the error names the line.
pub fn parse(text: &str) -> Result<Vec<Library>, String> {
    let mut libraries: Vec<Library> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let bad = |what: &str| format!("line {number}: {what}: {line}");
        match words.as_slice() {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["library", soname] => {
                libraries.push(Library { soname: (*soname).into(), nodes: Vec::new() })
            }
            ["node", name, parent @ ..] => {
                let library =
                    libraries.last_mut().ok_or_else(|| bad("a node outside a library"))?;
                let parent = match parent {
                    [] => None,
                    [parent] if library.nodes.iter().any(|node| node.name == *parent) => {
                        Some((*parent).into())
                    }
                    _ => return Err(bad("an unknown parent")),
                };
                library.nodes.push(VersionNode {
                    name: (*name).into(),
                    parent,
                    symbols: Vec::new(),
                });
            }
            [symbol, kind, live @ ..] => {
                let node = libraries.last_mut().and_then(|library| library.nodes.last_mut());
                let node = node.ok_or_else(|| bad("a symbol outside a node"))?;
                let kind = match *kind {
                    "errno" => Kind::Errno,
                    "eperm" => Kind::Eperm,
                    "negative" => Kind::Negative,
                    "minus-one" => Kind::MinusOne,
                    "null" => Kind::Null,
                    "zero" => Kind::Zero,
                    "void" => Kind::Void,
                    "clear" => Kind::Clear,
                    _ => return Err(bad("an unknown kind")),
                };
                let live = match live {
                    [] => None,
                    ["live", count] => {
                        Some(count.parse().map_err(|_| bad("no number of arguments"))?)
                    }
                    _ => return Err(bad("not understood")),
                };
                node.symbols.push(Symbol { name: (*symbol).into(), kind, live });
            }
            _ => return Err(bad("not understood")),
        }
    }
    Ok(libraries)
}
