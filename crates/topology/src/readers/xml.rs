//! XML of strangers: how deep, how wide and how large it may be, found before anything is built of
//! it.
//!
//! None of the files read here declares entities or name spaces, so both are refused: with entities
//! a short text stands for one of any length. Readers may go down the tree by recursion, since it
//! is no deeper than [`DEEPEST`].

use crate::Error;
use crate::source::bounds::LONGEST_TEXT;
use roxmltree::{Document, ParsingOptions};

/// Most elements within each other: hwloc's largest files have about 30.
const DEEPEST: usize = 128;
/// Most attributes of one element: the parser compares each with each.
const MOST_ATTRIBUTES: usize = 64;
/// Most elements, texts and comments.
const MOST_NODES: u32 = 400_000;

/// Parses a text.
///
/// # Errors
/// It is no XML, or more than a description of a machine is.
pub(crate) fn parse(text: &str) -> Result<Document<'_>, Error> {
    check(text).map_err(|reason| Error::malformed("XML", reason))?;
    // hwloc's files name a DTD
    let options = ParsingOptions { allow_dtd: true, nodes_limit: MOST_NODES, ..Default::default() };
    Document::parse_with_options(text, options).map_err(|error| Error::malformed("XML", error))
}

fn check(text: &str) -> Result<(), String> {
    if text.len() > LONGEST_TEXT {
        return Err(format!("longer than {} MiB", LONGEST_TEXT >> 20));
    }
    for (word, what) in [("<!ENTITY", "entities"), ("xmlns", "name spaces")] {
        if text.contains(word) {
            return Err(format!("it declares {what}, which no description of a machine does"));
        }
    }
    let mut depth = 0usize;
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        rest = &rest[at..];
        let end = match () {
            () if rest.starts_with("<!--") => rest.find("-->").map(|at| at + 3),
            () if rest.starts_with("<![CDATA[") => rest.find("]]>").map(|at| at + 3),
            () if rest.starts_with("<?") => rest.find("?>").map(|at| at + 2),
            () if rest.starts_with("<!") => rest.find('>').map(|at| at + 1),
            () => end_of_tag(rest),
        };
        // what does not end is the parser's to complain about
        let Some(end) = end else { return Ok(()) };
        let tag = &rest[..end];
        if tag.starts_with("<!DOCTYPE") && tag.contains('[') {
            return Err("it declares a grammar of its own".to_owned());
        }
        if tag.starts_with("</") {
            depth = depth.saturating_sub(1);
        } else if !tag.starts_with("<!") && !tag.starts_with("<?") {
            if attributes(tag) > MOST_ATTRIBUTES {
                return Err(format!("an element has more than {MOST_ATTRIBUTES} attributes"));
            }
            if !tag.ends_with("/>") {
                depth += 1;
            }
        }
        if depth > DEEPEST {
            return Err(format!("elements are nested more than {DEEPEST} deep"));
        }
        rest = &rest[end..];
    }
    Ok(())
}

/// Where a tag ends: at the first `>` outside quotes.
fn end_of_tag(text: &str) -> Option<usize> {
    let mut quote = None;
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (None, b'>') => return Some(at + 1),
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), _) if open == byte => quote = None,
            _ => {}
        }
    }
    None
}

/// Quoted values in a tag.
fn attributes(tag: &str) -> usize {
    let mut quote = None;
    let mut values = 0;
    for byte in tag.bytes() {
        match quote {
            None if matches!(byte, b'"' | b'\'') => quote = Some(byte),
            Some(open) if open == byte => {
                quote = None;
                values += 1;
            }
            _ => {}
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse(text).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_usual_passes() {
        let text = "<?xml version='1.0'?><!DOCTYPE topology SYSTEM \"hwloc2.dtd\"><!-- > <a> -->\
                    <topology a='>' b=\"/>\"><object/><![CDATA[<x>]]></topology>";
        assert_eq!(parse(text).unwrap().root_element().tag_name().name(), "topology");
    }

    #[test]
    fn depth_width_and_length_have_bounds() {
        let nested = |depth: usize| format!("{}{}", "<a>".repeat(depth), "</a>".repeat(depth));
        assert!(parse(&nested(DEEPEST)).is_ok());
        assert!(refused(&nested(DEEPEST + 1)).contains("nested"));
        // unfinished, and with comments that look like ends between
        assert!(refused(&"<a><!-- </a> -->".repeat(8000)).contains("nested"));
        // a quote that only this check would take for one
        let hidden = |start: &str| refused(&format!("{start}{}'", "<a>".repeat(8000)));
        assert!(hidden("<?x ' ?>").contains("nested"));
        assert!(hidden("<!-- ' -->").contains("nested"));
        assert!(hidden("<!DOCTYPE a [<!-- ' -->]>").contains("grammar"));
        let wide: String = (0..1000).map(|i| format!(" a{i}=''")).collect();
        assert!(refused(&format!("<a{wide}/>")).contains("attributes"));
        assert!(refused(&format!("<a>{}</a>", "<b/>".repeat(500_000))).contains("limit"));
        let entity = "<!DOCTYPE a [ <!ENTITY b \"bbbb\"><!ENTITY c \"&b;&b;\">]><a>&c;</a>";
        assert!(refused(entity).contains("entities"));
        assert!(refused("<a xmlns:b='c'/>").contains("name spaces"));
        assert!(refused(&" ".repeat(LONGEST_TEXT + 1)).contains("MiB"));
    }
}
