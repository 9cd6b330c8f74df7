//! The texts of errors with their causes.

use std::error::Error;

/// An error and its causes, from the outermost to the innermost.
pub fn error_chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// The innermost cause of an error; the error itself if it has no cause.
#[must_use]
pub fn root_cause<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    error_chain(error).last().unwrap_or(error)
}

/// An error and its causes in one line.
#[must_use]
pub fn error_with_causes(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<String> = error_chain(error).map(ToString::to_string).collect();
    texts.join(": ")
}

/// A message about an error with those of its causes that add to the text.
#[must_use]
pub fn message_with_causes(message: &str, error: &(dyn Error + 'static)) -> String {
    let mut text = message.to_owned();
    for cause in error_chain(error).skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Failure {
        text: &'static str,
        source: Option<Box<Failure>>,
    }

    #[test]
    fn causes_follow_from_the_outermost_to_the_innermost() {
        let inner = Failure { text: "no route", source: None };
        let middle = Failure { text: "cannot connect", source: Some(Box::new(inner)) };
        let outer = Failure { text: "cannot read", source: Some(Box::new(middle)) };
        assert_eq!(error_with_causes(&outer), "cannot read: cannot connect: no route");
        assert_eq!(root_cause(&outer).to_string(), "no route");
        assert_eq!(message_with_causes("cannot connect to x", &outer), "cannot connect to x: no route");
        assert_eq!(message_with_causes("it failed", &Failure { text: "x", source: None }), "it failed");
    }
}
