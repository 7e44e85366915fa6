//! The modules of a crate, as much of them as it takes to say which file uses what of which other.
//!
//! Sources are read as tokens. What only tests see is left out, and a macro's own language is read
//! as if it were Rust: that suffices to find names, and nothing here is compiled.

use anyhow::{Context, Result, anyhow};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A path as it is written: `crate`, `a`, `B`.
pub type Names = Vec<String>;

/// A module.
#[derive(Default)]
pub struct Module {
    /// The index of its file, which an inline module shares with the one around it.
    pub file: usize,
    pub parent: Option<usize>,
    pub children: BTreeMap<String, usize>,
    /// What it defines itself.
    pub items: BTreeSet<String>,
    pub uses: Vec<Use>,
    /// Paths of two names or more, outside of `use`.
    pub paths: Vec<Names>,
    /// Every name outside of `use`, and those that begin or go on a path.
    pub words: BTreeSet<String>,
    pub heads: BTreeSet<String>,
    /// Whether it says `unsafe` anywhere.
    pub has_unsafe: bool,
}

/// One name that a `use` brings in.
pub struct Use {
    pub path: Names,
    /// What it is called here; `*` for all that there is.
    pub name: String,
    pub is_public: bool,
}

/// A crate's modules, its root first, and their files.
#[derive(Default)]
pub struct Crate {
    pub modules: Vec<Module>,
    pub files: Vec<PathBuf>,
}

impl Crate {
    /// Reads the crate whose root is `lib.rs` or `main.rs`.
    ///
    /// # Errors
    /// A file cannot be read, or is no Rust.
    pub fn read(root: &Path) -> Result<Crate> {
        let mut found = Crate::default();
        found.file(root, None, root.parent().context("a file in a folder")?)?;
        Ok(found)
    }

    /// Reads a module's file, whose own modules lie in `folder`.
    fn file(&mut self, file: &Path, parent: Option<usize>, folder: &Path) -> Result<usize> {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let tokens: TokenStream = text
            .parse()
            .map_err(|error: proc_macro2::LexError| anyhow!("{}: {error}", file.display()))?;
        self.files.push(file.to_owned());
        let module = self.add(self.files.len() - 1, parent);
        self.body(module, without_tests(tokens), folder)?;
        Ok(module)
    }

    fn add(&mut self, file: usize, parent: Option<usize>) -> usize {
        self.modules.push(Module { file, parent, ..Module::default() });
        self.modules.len() - 1
    }

    fn body(&mut self, module: usize, tokens: Vec<TokenTree>, folder: &Path) -> Result<()> {
        let mut rest = tokens.as_slice();
        while !rest.is_empty() {
            let (attributes, after) = attributes(rest);
            let (item, after) = after.split_at(item_end(after));
            rest = after;
            let (is_public, item) = visibility(item);
            match item {
                [mark, TokenTree::Ident(name), body, ..] if is(mark, "mod") => {
                    self.child(module, &name.to_string(), body, attributes, folder)?;
                }
                [mark, tree @ ..] if is(mark, "use") => {
                    self.modules[module].uses.extend(use_tree(tree, is_public));
                }
                item => self.modules[module].item(item),
            }
        }
        Ok(())
    }

    /// A module within another: in its braces, or in a file of its own.
    fn child(
        &mut self,
        module: usize,
        name: &str,
        body: &TokenTree,
        attributes: &[TokenTree],
        folder: &Path,
    ) -> Result<()> {
        let own = folder.join(name);
        let child = match body {
            TokenTree::Group(group) => {
                let child = self.add(self.modules[module].file, Some(module));
                self.body(child, group.stream().into_iter().collect(), &own)?;
                child
            }
            _ => {
                let beside = self.files[self.modules[module].file].with_file_name("");
                let named = path_attribute(attributes).map(|path| beside.join(path));
                let flat = folder.join(format!("{name}.rs"));
                let file = named.or(Some(flat).filter(|flat| flat.is_file()));
                let file = file.unwrap_or_else(|| own.join("mod.rs"));
                self.file(&file, Some(module), &own)?
            }
        };
        self.modules[module].children.insert(name.to_owned(), child);
        Ok(())
    }
}

impl Module {
    /// Takes an item's name and all that it names.
    fn item(&mut self, tokens: &[TokenTree]) {
        const KINDS: [&str; 8] =
            ["struct", "enum", "union", "trait", "type", "fn", "const", "static"];
        for pair in tokens.windows(2) {
            if let [kind, TokenTree::Ident(name)] = pair
                && KINDS.iter().any(|own| is(kind, own))
            {
                self.items.insert(name.to_string());
            }
        }
        match tokens {
            [mark, bang, TokenTree::Ident(name), ..]
                if is(mark, "macro_rules") && is_punct(bang, '!') =>
            {
                self.items.insert(name.to_string());
            }
            // What a macro defines is found by the words before it.
            [TokenTree::Ident(_), bang, TokenTree::Group(body), ..] if is_punct(bang, '!') => {
                let mut inner = Module::default();
                inner.item(&body.stream().into_iter().collect::<Vec<_>>());
                self.items.extend(inner.items);
            }
            _ => {}
        }
        self.text(tokens);
    }

    fn text(&mut self, tokens: &[TokenTree]) {
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => {
                    self.text(&group.stream().into_iter().collect::<Vec<_>>());
                    at += 1;
                }
                // Within a function; `use<T>` is of a type.
                mark if is(mark, "use")
                    && !tokens.get(at + 1).is_some_and(|next| is_punct(next, '<')) =>
                {
                    let end = at + item_end(&tokens[at..]);
                    self.uses.extend(use_tree(&tokens[at + 1..end], false));
                    at = end;
                }
                TokenTree::Ident(_) => {
                    let before = &tokens[at.saturating_sub(2)..at];
                    let goes_on =
                        before.len() == 2 && before.iter().all(|token| is_punct(token, ':'));
                    at += self.path(&tokens[at..], goes_on);
                }
                _ => at += 1,
            }
        }
    }

    /// Takes the path at the start of the tokens; how many they are. One that goes on another, such
    /// as the part behind generic arguments, is no path of its own.
    fn path(&mut self, tokens: &[TokenTree], goes_on: bool) -> usize {
        let mut names = Names::new();
        let mut at = 0;
        while let Some(TokenTree::Ident(name)) = tokens.get(at) {
            self.has_unsafe |= name == "unsafe";
            names.push(name.to_string());
            at += 1;
            let is_colon = |at: usize| tokens.get(at).is_some_and(|token| is_punct(token, ':'));
            let more = matches!(tokens.get(at + 2), Some(TokenTree::Ident(_)));
            if is_colon(at) && is_colon(at + 1) {
                self.heads.extend(names.last().cloned());
            }
            if !(is_colon(at) && is_colon(at + 1) && more) {
                break;
            }
            at += 2;
        }
        self.words.extend(names.iter().cloned());
        if names.len() > 1 && !goes_on {
            self.paths.push(names);
        }
        at
    }
}

fn is(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

fn is_punct(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

/// The attributes before an item, and the rest.
fn attributes(tokens: &[TokenTree]) -> (&[TokenTree], &[TokenTree]) {
    let mut at = 0;
    while tokens.get(at).is_some_and(|token| is_punct(token, '#')) {
        at += 1 + usize::from(tokens.get(at + 1).is_some_and(|token| is_punct(token, '!')));
        at = (at + 1).min(tokens.len());
    }
    tokens.split_at(at)
}

/// How many tokens an item has: up to a semicolon, or to its braces and the semicolon behind them.
fn item_end(tokens: &[TokenTree]) -> usize {
    for (at, token) in tokens.iter().enumerate() {
        if is_punct(token, ';') {
            return at + 1;
        }
        if matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace) {
            let semicolon = tokens.get(at + 1).is_some_and(|token| is_punct(token, ';'));
            return at + 1 + usize::from(semicolon);
        }
    }
    tokens.len()
}

/// Whether an item is public in any way, and the item behind that word.
fn visibility(item: &[TokenTree]) -> (bool, &[TokenTree]) {
    match item {
        [mark, TokenTree::Group(_), rest @ ..] if is(mark, "pub") => (true, rest),
        [mark, rest @ ..] if is(mark, "pub") => (true, rest),
        _ => (false, item),
    }
}

/// The file that `#[path = "…"]` names.
fn path_attribute(attributes: &[TokenTree]) -> Option<String> {
    attributes.iter().find_map(|token| {
        let TokenTree::Group(group) = token else { return None };
        let inner: Vec<TokenTree> = group.stream().into_iter().collect();
        match inner.as_slice() {
            [mark, _, TokenTree::Literal(path)] if is(mark, "path") => {
                Some(path.to_string().trim_matches('"').to_owned())
            }
            _ => None,
        }
    })
}

/// The names that a `use` brings in, from the tokens between the word and its end.
fn use_tree(tokens: &[TokenTree], is_public: bool) -> Vec<Use> {
    let mut found = Vec::new();
    let tokens: Vec<TokenTree> =
        tokens.iter().filter(|token| !is_punct(token, ';')).cloned().collect();
    branch(&tokens, &[], is_public, &mut found);
    found
}

fn branch(tokens: &[TokenTree], before: &[String], is_public: bool, found: &mut Vec<Use>) {
    for part in tokens.split(|token| is_punct(token, ',')) {
        let (mut path, mut alias, mut leaf) = (before.to_vec(), None, true);
        let mut rest = part.iter();
        while let Some(token) = rest.next() {
            match token {
                TokenTree::Group(group) => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    branch(&inner, &path, is_public, found);
                    leaf = false;
                }
                TokenTree::Ident(word) if word == "as" => {
                    alias = rest.next().map(ToString::to_string);
                }
                TokenTree::Ident(name) => path.push(name.to_string()),
                token if is_punct(token, '*') => path.push("*".to_owned()),
                _ => {}
            }
        }
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        if let Some(last) = path.last().filter(|_| leaf && !part.is_empty()) {
            let name = alias.unwrap_or_else(|| last.clone());
            found.push(Use { path, name, is_public });
        }
    }
}

/// Tokens without the items that only tests see.
fn without_tests(tokens: TokenStream) -> Vec<TokenTree> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut kept = Vec::new();
    let mut rest = tokens.as_slice();
    while let Some(first) = rest.first() {
        let (attributes, after) = attributes(rest);
        if attributes.iter().any(is_for_tests) {
            rest = &after[item_end(after)..];
            continue;
        }
        if !attributes.is_empty() {
            kept.extend(attributes.iter().cloned());
            rest = after;
            continue;
        }
        rest = &rest[1..];
        kept.push(match first {
            TokenTree::Group(group) => {
                let inner = without_tests(group.stream()).into_iter().collect();
                TokenTree::Group(Group::new(group.delimiter(), inner))
            }
            token => token.clone(),
        });
    }
    kept
}

/// Whether an attribute is `cfg(test)`, or one of several that are needed together with it.
fn is_for_tests(attribute: &TokenTree) -> bool {
    let TokenTree::Group(attribute) = attribute else { return false };
    let inner: Vec<TokenTree> = attribute.stream().into_iter().collect();
    let [mark, TokenTree::Group(condition)] = inner.as_slice() else { return false };
    let words = condition.stream().to_string();
    let words: String = words.chars().filter(|c| !c.is_whitespace()).collect();
    let only = ["test", "loom", "fuzzing"];
    is(mark, "cfg")
        && (only.contains(&&*words) || words.starts_with("all(test,") || words == "any(test,loom)")
}
