//! The page that `vramalloc report --html` writes: one file that asks for nothing else.
//!
//! The page's text, style and scripts are files of their own (`html/page`), the
//! libraries that they use are as they were published (`html/libraries`), and all are in
//! the command. Invariant: what comes from other files is in one block of JSON that is
//! no script, in which no character can end it; the scripts put it into the page as
//! text. The page forbids the browser every request.

pub(crate) mod map;
pub(crate) mod model;
pub(crate) mod names;
pub(crate) mod thin;

use std::fmt::Write;

use self::model::PageShown;

/// A file of the page or of a library.
macro_rules! file {
    ($name:literal) => {
        include_str!(concat!("html/", $name))
    };
}

/// The page, with a mark where each of the others comes.
const PAGE: &str = file!("page/page.html");

const STYLES: [&str; 2] = [file!("libraries/uPlot.min.css"), file!("page/page.css")];

/// In the order in which they need each other.
const SCRIPTS: &[&str] = &[
    file!("libraries/uPlot.iife.min.js"),
    file!("libraries/d3-array.min.js"),
    file!("libraries/d3-color.min.js"),
    file!("libraries/d3-dispatch.min.js"),
    file!("libraries/d3-ease.min.js"),
    file!("libraries/d3-format.min.js"),
    file!("libraries/d3-timer.min.js"),
    file!("libraries/d3-interpolate.min.js"),
    file!("libraries/d3-hierarchy.min.js"),
    file!("libraries/d3-scale.min.js"),
    file!("libraries/d3-selection.min.js"),
    file!("libraries/d3-transition.min.js"),
    file!("libraries/d3-flamegraph.umd.min.js"),
    file!("page/words.js"),
    file!("page/data.js"),
    file!("page/theme.js"),
    file!("page/report.js"),
    file!("page/flames.js"),
    file!("page/chunks.js"),
    file!("page/ranks.js"),
    // Tells the others of the range, after they were told of the view.
    file!("page/timeline.js"),
    file!("page/page.js"),
];

/// Of what is in the page: who made it, and under what licence.
const LICENCES: [(&str, &str); 5] = [
    ("uPlot", file!("libraries/uplot.LICENSE")),
    ("d3-flame-graph", file!("libraries/d3-flame-graph.LICENSE")),
    (
        "d3-array, d3-color, d3-dispatch, d3-format, d3-hierarchy, d3-interpolate, d3-scale, \
         d3-selection, d3-timer, d3-transition",
        file!("libraries/d3.LICENSE"),
    ),
    ("d3-ease", file!("libraries/d3-ease.LICENSE")),
    (
        "internmap (in d3-array)",
        file!("libraries/internmap.LICENSE"),
    ),
];

/// The heading below which a report gives advice, which the page shows first.
pub(crate) const ADVICE: &str = "what would have helped";

/// The page that shows this.
pub(crate) fn text(shown: &PageShown) -> String {
    // What cannot be written as JSON is not in it: all keys are text.
    let data = serde_json::to_string(shown).unwrap_or_default();
    let mut licences = String::new();
    for (names, licence) in LICENCES {
        let (names, licence) = (escaped(names), escaped(licence));
        // Writing to a string cannot fail.
        let _ = write!(licences, "<h3>{names}</h3>\n<pre>{licence}</pre>\n");
    }
    let parts = [
        ("styles", STYLES.concat()),
        ("licences", licences),
        ("data", inert(&data)),
        ("scripts", SCRIPTS.join("\n")),
    ];
    let mut page = String::with_capacity(data.len() + (400 << 10));
    let mut rest = PAGE;
    for (name, part) in parts {
        let mark = format!("{{{{{name}}}}}");
        if let Some((before, behind)) = rest.split_once(&mark) {
            page.push_str(before);
            page.push_str(&part);
            rest = behind;
        }
    }
    page.push_str(rest);
    page
}

/// JSON in which nothing can end the block that it stands in, nor begin another.
fn inert(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            // None of these stands outside of a string of JSON.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(text, "\\u{:04x}", u32::from(character));
            }
            other => text.push(other),
        }
    }
    text
}

/// A text as it is written in HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_the_block_of_data() {
        let text = "</script><!-- & \u{2028} \"\\";
        let json = serde_json::to_string(text).unwrap();
        let inert = inert(&json);
        assert!(!inert.contains(['<', '>', '&', '\u{2028}']), "{inert}");
        assert_eq!(serde_json::from_str::<String>(&inert).unwrap(), text);
    }

    #[test]
    fn the_scripts_know_advice_by_its_heading() {
        let known = format!("const ADVICE = \"{ADVICE}\";");
        assert!(SCRIPTS.iter().any(|script| script.contains(&known)));
    }

    #[test]
    fn every_part_is_in_the_page() {
        let page = text(&PageShown {
            version: "0",
            processes: Vec::new(),
        });
        for mark in ["styles", "licences", "data", "scripts"] {
            assert!(!page.contains(&format!("{{{{{mark}}}}}")), "{mark}");
        }
        for script in SCRIPTS {
            assert!(page.contains(script));
            let ends = script.to_lowercase().contains("</script");
            assert!(!ends && !script.contains("<!--"));
        }
        assert!(STYLES.iter().all(|style| !style.contains("</")));
    }
}
