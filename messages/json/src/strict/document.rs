//! A typed document of any schema, checked as a whole. Each problem names its line.

use crate::input::{InputError, Problem, Problems, are_related_paths};
use crate::strict::lines::LineNumbers;
use crate::strict::tree::Tree;
use crate::strict::walk::{Path, Schema, check_strictly};
use crate::strict::yaml;

/// A document during its check: the valid parts, and the problems of the rest.
#[derive(Debug)]
pub struct Document<'a> {
    subject: &'a str,
    text: &'a str,
    /// The parts with the right shape; all others are absent.
    root: Tree,
    problems: Problems,
}

impl<'a> Document<'a> {
    /// Reads one YAML or JSON document of at most `most` bytes and compares its shape with the schema. `subject` is
    /// the kind of document, such as "scenario".
    ///
    /// # Errors
    /// The text is too long or is not YAML; the error names the place and the reason. [`Document::finish`] reports
    /// wrong shapes together with broken rules.
    pub fn read(
        subject: &'a str,
        text: &'a str,
        most: usize,
        schema: &'static Schema,
    ) -> Result<Self, InputError> {
        if text.len() > most {
            let got = format!("{} bytes", text.len());
            return Err(yaml::error_of_text(subject, got, &format!("at most {most} bytes")));
        }
        let tree = yaml::read_yaml(subject, text)?;
        let mut problems = Problems::default();
        let root = check_strictly(tree, schema, Path::Root, &mut problems);
        Ok(Self { subject, text, root, problems })
    }

    /// The parts of the document with the right shape.
    #[must_use]
    pub fn root(&self) -> &Tree {
        &self.root
    }

    /// True if a field and all fields below it have the right shape.
    #[must_use]
    pub fn is_sound(&self, field: &str) -> bool {
        !self.problems.has_problem(|wrong| are_related_paths(wrong, field))
    }

    /// `Ok` if nothing is wrong. `broken` are the rules that the content breaks.
    ///
    /// # Errors
    /// All problems, in the order of their lines; each field begins with its line.
    pub fn finish(mut self, broken: Problems) -> Result<(), InputError> {
        self.problems.add_unrelated(broken);
        self.problems.number_lines(self.text);
        self.problems.finish(self.subject)
    }
}

impl Problems {
    /// Sorts problems by the lines of their fields in a YAML text, and puts `line N: ` before each field.
    pub fn number_lines(&mut self, text: &str) {
        if self.is_empty() {
            return;
        }
        let lines = LineNumbers::from_text(text);
        self.0.sort_by_cached_key(|problem| lines.find(&problem.field));
        for Problem { field, .. } in &mut self.0 {
            if let Some(line) = lines.find(field) {
                let name = if field.is_empty() { String::new() } else { format!(": {field}") };
                *field = format!("line {line}{name}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Document;
    use crate::input::Problems;
    use crate::strict::walk::{Kind, Schema};

    static SCHEMA: Schema = Schema {
        fields: &[
            ("name", Kind::Text),
            ("size", Kind::Whole(1, 9)),
            ("for", Kind::Word("a duration such as 30s")),
        ],
    };

    #[test]
    fn problems_of_shape_and_of_rules_come_in_the_order_of_their_lines() {
        let text = "nam: a\nname: ''\nfor: 30\nsize: 12\n";
        let document = Document::read("thing", text, 1_000, &SCHEMA).unwrap();
        let mut broken = Problems::default();
        broken.add("size", "", "a size, which the shape speaks of already");
        broken.add("name", "\"\"", "a name");
        let error = document.finish(broken).unwrap_err();
        assert_eq!(
            error.to_string(),
            "thing is not valid; line 1: nam: got an unknown field, expected a known field such as \"name\"; \
             line 2: name: got \"\", expected a name; line 3: for: got the number 30, expected a duration such as 30s; \
             line 4: size: got the number 12, expected a whole number from 1 to 9"
        );
    }

    #[test]
    fn a_field_is_valid_unless_it_or_its_parent_is_wrong() {
        let document = Document::read("thing", "name: a\nsize: 12\n", 1_000, &SCHEMA).unwrap();
        assert!(document.is_sound("name") && document.is_sound("for") && !document.is_sound("size"));
        let list = Document::read("thing", "[1]", 1_000, &SCHEMA).unwrap();
        assert!(!list.is_sound("name"));
    }

    #[test]
    fn malformed_document_is_refused_with_its_place() {
        let refused = |text| Document::read("thing", text, 20, &SCHEMA).unwrap_err().to_string();
        assert!(refused("name: [").contains("line"), "{}", refused("name: ["));
        assert!(refused("name: a\nname: b").contains("line 2, column 1"), "{}", refused("name: a\nname: b"));
        assert!(refused(&"#".repeat(21)).contains("at most 20 bytes"));
        let list = Document::read("thing", "[1]", 20, &SCHEMA).unwrap();
        let error = list.finish(Problems::default()).unwrap_err().to_string();
        assert_eq!(error, "thing is not valid; line 1: got a list, expected an object");
    }
}
