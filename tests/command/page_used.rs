//! Risk: the page of `vramalloc report --html` cannot be used in a browser.

use crate::browser::Browser;
use crate::page::{HEAD, page, recorded, two_peaks};

/// The page as people use it.
#[test]
fn the_page_works_in_a_browser() {
    let recording = recorded(HEAD, &two_peaks());
    let other = recorded(
        &HEAD.replace("\"0\"", "\"1\"").replace("42", "43"),
        &two_peaks()[..12],
    );
    let files: [(&str, &[u8]); 2] = [("r.rec", &recording), ("o.rec", &other)];
    let (path, _, _) = page("page_browser", &files);
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let took = browser.open(&path, [1200, 900], false);
    assert!(took.as_secs() < 5, "{took:?}");

    // The flame graph does not grow into its width.
    let frame = "document.querySelector('#flame rect').getAttribute('width') / document.getElementById('flame').clientWidth";
    let part = browser.value(frame).as_f64().unwrap();
    assert!(part > 0.95, "{part}");

    // All of it, then the second half, by the mouse.
    let whole = (browser.text("selected"), browser.text("flame-total"));
    assert!(
        whole.0.starts_with("All of it: most live 48.0 MiB"),
        "{whole:?}"
    );
    assert!(whole.1.starts_with("48.0 MiB of 1 call stack"), "{whole:?}");
    browser.value("document.getElementById('plot').scrollIntoView({ block: 'center' })");
    let area = browser.value(
        "(() => { const r = document.querySelector('.u-over').getBoundingClientRect(); \
         return [r.left, r.top, r.width, r.height]; })()",
    );
    let [left, top, width, height] = [0, 1, 2, 3].map(|n| area[n].as_f64().unwrap());
    let at = |part: f64| [left + width * part, top + height / 2.0];
    // Before anything was taken there was nothing.
    browser.drag(at(0.01), at(0.05));
    let selected = browser.text("selected");
    let nothing = "most live 0 B at ";
    assert!(
        selected.contains(nothing) && selected.contains("at most 0 B reserved"),
        "{selected}"
    );
    browser.drag(at(0.85), at(0.99));
    let selected = (browser.text("selected"), browser.text("flame-total"));
    assert!(
        selected.0.starts_with("Selected ") && selected.0.contains("most live 24.0 MiB"),
        "{selected:?}"
    );
    assert!(
        selected.1.starts_with("24.0 MiB of 1 call stack"),
        "{selected:?}"
    );
    let labels = "[...document.querySelectorAll('#flame title')].map(t => t.textContent).join()";
    assert!(
        browser
            .value(labels)
            .as_str()
            .unwrap()
            .contains("data.py:7 load: 24.0 MiB")
    );

    // Zoom, and out of it.
    browser.value("document.getElementById('zoom-selected').click()");
    browser.until("document.getElementById('zoom-all').disabled === false");
    browser.value("document.getElementById('clear').click()");
    assert_eq!(browser.text("selected"), whole.0);

    // By keys: to the end, and back from there with a selection.
    browser.value("document.getElementById('plot').focus()");
    browser.key("0", false, 1);
    browser.key("End", false, 1);
    assert!(browser.text("at-cursor").contains("24.0 MiB live"));
    browser.key("ArrowLeft", true, 2);
    assert!(browser.text("selected").starts_with("Selected "));
    browser.key("Escape", false, 1);
    assert_eq!(browser.text("selected"), whole.0);
    browser.value("document.getElementById('flame').focus()");
    browser.key("ArrowDown", false, 3);
    assert!(
        browser
            .text("flame-detail")
            .starts_with("train.py:41 forward: 48.0 MiB")
    );
    browser.value("document.getElementById('chunk-map').focus()");
    browser.key("ArrowRight", false, 6);
    assert!(
        browser
            .text("chunk-detail")
            .contains("chosen: 16.0 MiB, free")
    );

    // The other rank.
    browser.value("document.querySelectorAll('.card')[1].click()");
    assert!(browser.text("place-name").starts_with("rank 1"));

    // Dark, by the system and by choice; narrow.
    let ground = "getComputedStyle(document.body).backgroundColor";
    let light = browser.value(ground);
    browser.value("(() => { const t = document.getElementById('theme'); t.value = 'dark'; t.dispatchEvent(new Event('change')); })()");
    let dark = browser.value(ground);
    assert_ne!(light, dark);
    browser.value("localStorage.clear()");
    browser.open(&path, [360, 780], true);
    assert_eq!(browser.value(ground), dark);
    let width = browser.value("document.documentElement.scrollWidth");
    assert!(width.as_u64().is_some_and(|width| width <= 360), "{width}");
    // Labels of the scale stand whole beside their ticks.
    let room = browser.value(
        "(() => { const c = document.createElement('canvas').getContext('2d'); \
         c.font = '12px system-ui, sans-serif'; \
         const left = (e) => e.getBoundingClientRect().left; \
         return left(document.querySelector('.u-over')) - left(document.getElementById('plot')) \
         - c.measureText('64.0 MiB').width; })()",
    );
    assert!(room.as_f64() >= Some(15.0), "{room}");
    assert_eq!(browser.complaints(), [""; 0]);
}
