//! Single values of a statistics file, for scripts: by JSON pointers (RFC
//! 6901).

use serde_json::Value;

use super::super::output::plain;
use super::Read;

/// A pointer as an argument.
///
/// # Errors
/// What a pointer looks like.
pub(super) fn pointer(text: &str) -> Result<String, String> {
    match text.is_empty() || text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err("a JSON pointer begins with /, such as /arenas/0/waits".to_owned()),
    }
}

/// A line with the values of the pointers for each file, and an error for each that is not
/// JSON and has no values.
pub(super) fn values(
    files: impl Iterator<Item = Read>,
    pointers: &[String],
) -> (String, Vec<String>) {
    let (mut text, mut errors) = (String::new(), Vec::new());
    for (name, read) in files {
        let parsed = read.and_then(|bytes| {
            serde_json::from_slice::<Value>(&bytes).map_err(|error| error.to_string())
        });
        match parsed {
            Ok(file) => {
                let shown: Vec<String> = pointers.iter().map(|at| shown(&file, at)).collect();
                text += &shown.join(" ");
                text.push('\n');
            }
            Err(error) => {
                text += &vec!["-"; pointers.len()].join(" ");
                text.push('\n');
                errors.push(format!("{name}: {error}"));
            }
        }
    }
    (text, errors)
}

/// A text without its quotes, in one line; any other value as JSON.
fn shown(file: &Value, pointer: &str) -> String {
    match file.pointer(pointer) {
        None => "-".to_owned(),
        Some(Value::String(text)) => plain(text),
        Some(value) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_pointers() {
        let files = [
            ("a", Ok(br#"{"n": 3, "list": [{"text": "x\ny"}]}"#.to_vec())),
            ("b", Ok(b"{".to_vec())),
            ("c", Err("not there".to_owned())),
        ];
        let files = files.map(|(name, read)| (name.to_owned(), read));
        let pointers = ["/list/0/text", "/n", "/none", "/list/7"].map(str::to_owned);
        let (text, errors) = values(files.into_iter(), &pointers);
        assert_eq!(text, "x\u{fffd}y 3 - -\n- - - -\n- - - -\n");
        assert_eq!(errors.len(), 2);
        assert!(pointer("").is_ok() && pointer("/n").is_ok() && pointer("n/0").is_err());
        assert!(errors[0].starts_with("b: ") && errors[1] == "c: not there");
    }
}
