//! Modules of a crate use each other in one direction only: whoever reads one needs to read those below it, and no
//! other.
//!
//! A module is a file. It uses another where a path in it leads to something that the other declares, also by way of a
//! `pub use`; what is only for tests does not count. A circle of such uses is one room with several doors: its parts
//! can be neither read nor tried alone.
//!
//! Methods of one type may be declared in several modules. A module that calls such a method uses the one that
//! declares it, though no path says so. Calls on `self`, on `this`, and on a variable or field with the name of the
//! type in small letters are found, where the module declares or imports the type; others are not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use syn::visit::{self, Visit};
use walkdir::WalkDir;

/// The place of a module in its crate: the names from the root on; none for the root.
type Place = Vec<String>;

#[test]
fn no_module_is_in_a_circle_with_another() {
    assert_eq!(circles_by(arrows_of), Vec::<String>::new());
}

/// Most would be a part of a connection and its parent.
#[test]
fn no_module_is_in_a_circle_by_calls_of_methods() {
    assert_eq!(circles_by(all_arrows_of), Vec::<String>::new());
}

/// The circles of all crates, each with the name of its crate.
fn circles_by(arrows_of: impl Fn(&Modules) -> Vec<Arrow<'_>>) -> Vec<String> {
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../crates"));
    let folders = fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path());
    folders
        .flat_map(|folder| {
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            let modules = modules_of(&folder.join("src"));
            let circles = circles_of(&modules, arrows_of(&modules));
            Vec::from_iter(circles.iter().map(|circle| format!("{name}: {circle}")))
        })
        .collect()
}

/// The cache has the most modules. Its table is the order in which they can be read.
#[test]
fn modules_of_the_cache_use_what_is_below_them_in_its_table() {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/cache/src"));
    let order = names_in_table(&fs::read_to_string(source.join("lib.rs")).unwrap());
    let line_of = |place: &Place| {
        let line = order.iter().position(|name| *name == place[0]);
        line.unwrap_or_else(|| panic!("{place:?} is not in the table of modules"))
    };
    // What users choose names the policies.
    let may_point_up = |to: &Place| *to == place("replacement::policy");
    let modules = modules_of(source);
    let arrows = all_arrows_of(&modules).into_iter();
    for (from, to, path) in arrows.filter(|(from, to, _)| !from.is_empty() && !to.is_empty()) {
        let is_down = from[0] == to[0] || line_of(from) < line_of(to);
        assert!(is_down || may_point_up(to), "{} uses {path}, which is above it in the table", from.join("::"));
    }
}

#[test]
fn names_in_a_table_are_in_its_order() {
    let table = "//! | module | holds |\n//! |---|---|\n//! | `b`, [`a`] | `d` |\n//! | [`mod@c`] | e |\n";
    assert_eq!(names_in_table(table), ["b", "a", "c"]);
}

#[test]
fn a_circle_through_a_name_that_is_handed_on_is_found() {
    let modules = BTreeMap::from([
        (place(""), uses("mod a; mod b; pub use a::Above;")),
        (place("a"), uses("use crate::b::{self, Below}; pub struct Above;")),
        (place("b"), uses("pub fn below() -> crate::Above { Above }")),
    ]);
    assert_eq!(in_words(&modules), ["a, b: a uses crate::b, crate::b::Below; b uses crate::Above"]);
}

#[test]
fn what_is_only_for_tests_and_what_points_one_way_is_no_circle() {
    let modules = BTreeMap::from([
        (place(""), uses("mod a; mod b;")),
        (place("a"), uses("use super::b::Below; fn f() { log!(crate::b::g()) }")),
        (place("b"), uses("#[cfg(test)] mod tests { use crate::a::Above; } pub struct Below;")),
    ]);
    assert_eq!(in_words(&modules), Vec::<String>::new());
}

#[test]
fn circles_that_one_leads_to_another_are_told_apart() {
    let modules = BTreeMap::from([
        (place(""), uses("mod a; mod b; mod c; mod d; mod e;")),
        (place("a"), uses("use crate::b::B; use crate::c::C; pub struct A;")),
        (place("b"), uses("use crate::a::A; pub struct B;")),
        (place("c"), uses("use crate::d::D; use crate::e::E; pub struct C;")),
        (place("d"), uses("use crate::c::C; pub struct D;")),
        (place("e"), uses("pub struct E;")),
    ]);
    let expected = ["a, b: a uses crate::b::B; b uses crate::a::A", "c, d: c uses crate::d::D; d uses crate::c::C"];
    assert_eq!(in_words(&modules), expected);
}

#[test]
fn a_path_in_a_macro_counts() {
    let modules = BTreeMap::from([
        (place(""), uses("mod a; mod b;")),
        (place("a"), uses("fn f() { log!(\"{}\", crate::b::g()) }")),
        (place("b"), uses("fn g() { super::a::f() }")),
    ]);
    assert_eq!(in_words(&modules), ["a, b: a uses crate::b::g; b uses super::a::f"]);
}

#[test]
fn a_circle_by_methods_of_one_type_in_several_modules_is_found() {
    let core = uses("pub struct Core; impl Core { fn low(&self) {} }");
    let modules = |c: &str| {
        BTreeMap::from([
            (place(""), uses("mod a; mod b; mod c; mod core;")),
            (place("a"), uses("use crate::core::Core; impl Core { fn high(&self) { self.low(); self.middle() } }")),
            (place("b"), uses("use crate::core::Core; impl Core { fn middle(&self) { join!(self.above()) } }")),
            (place("c"), uses(&format!("use crate::core::Core; {c}"))),
            (place("core"), core.clone()),
        ])
    };
    let circles = |c: &str| {
        let modules = modules(c);
        Vec::from_iter(circles_of(&modules, all_arrows_of(&modules)).iter().map(ToString::to_string))
    };
    let circle = "a, b, c: a uses .middle; b uses .above; c uses .high";
    for call in ["self.high()", "core.high()", "held.core.high()", "Self::high(self)", "Core::high(self)"] {
        assert_eq!(circles(&format!("impl Core {{ fn above(&self) {{ {call} }} }}")), [circle], "{call}");
    }
    assert_eq!(circles("impl Core { fn above(&self) { self.low(); other.high() } }"), Vec::<String>::new());
    let for_tests = "impl Core { fn above(&self) {} #[cfg(test)] fn tried(&self) { self.high() } }";
    assert_eq!(circles(for_tests), Vec::<String>::new());
}

fn place(path: &str) -> Place {
    path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Modules that the table at the top of a `lib.rs` names, in their order.
fn names_in_table(source: &str) -> Vec<String> {
    let first_cells = source.lines().filter_map(|line| line.strip_prefix("//! | ")?.split(" | ").next());
    let quoted = first_cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    quoted.map(|name| name.trim_start_matches("mod@").to_owned()).collect()
}

fn in_words(modules: &Modules) -> Vec<String> {
    circles_of(modules, arrows_of(modules)).iter().map(ToString::to_string).collect()
}

fn uses(code: &str) -> Uses {
    let mut uses = Uses::default();
    uses.visit_file(&syn::parse_file(code).unwrap());
    uses
}

/// All modules of a crate and what they name. Programs under `bin` are crates of their own.
fn modules_of(source: &Path) -> Modules {
    let files = WalkDir::new(source).into_iter().map(|entry| entry.unwrap().into_path());
    files
        .filter(|path| {
            path.extension().is_some_and(|extension| extension == "rs") && !path.starts_with(source.join("bin"))
        })
        .map(|path| (place_of(source, &path), uses(&fs::read_to_string(&path).unwrap())))
        .filter(|(place, _)| place.last().is_none_or(|name| name != "tests"))
        .collect()
}

fn place_of(source: &Path, file: &Path) -> Place {
    let relative: PathBuf = file.strip_prefix(source).unwrap().with_extension("");
    let mut place: Place = relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if place.last().is_some_and(|name| name == "mod") || place == ["lib"] || place == ["main"] {
        place.pop();
    }
    place
}

/// Modules that use each other, and the uses that close the circle.
struct Circle {
    modules: Vec<String>,
    uses: Vec<String>,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.modules.join(", "), self.uses.join("; "))
    }
}

/// Which module uses which, and by what path.
fn arrows_of(modules: &Modules) -> Vec<Arrow<'_>> {
    let mut arrows = Vec::new();
    for (from, uses) in modules {
        for path in &uses.paths {
            let target = absolute(from, path, modules).and_then(|path| declared_in(&path, modules, 0));
            let found = target.and_then(|target| modules.get_key_value(&target));
            if let Some((to, _)) = found.filter(|(to, _)| *to != from) {
                arrows.push((from, to, path.join("::")));
            }
        }
    }
    arrows
}

/// Likewise, by paths and by calls of methods.
fn all_arrows_of(modules: &Modules) -> Vec<Arrow<'_>> {
    // A type by the module that declares it and its name there, and which modules declare which methods of it.
    let mut methods = BTreeMap::<(Place, &str), BTreeMap<&str, &Place>>::new();
    for (place, uses) in modules {
        for method in &uses.methods {
            if let Some(of) = declaration_of(&method.of, place, modules) {
                methods.entry((of, &method.of)).or_default().insert(&method.name, place);
            }
        }
    }
    let mut arrows = arrows_of(modules);
    for (from, uses) in modules {
        for Method { of, name } in &uses.calls {
            let methods = declaration_of(of, from, modules).and_then(|declaration| methods.get(&(declaration, of)));
            let to = methods.and_then(|methods| methods.get(name.as_str()));
            arrows.extend(to.filter(|to| **to != from).map(|to| (from, *to, format!(".{name}"))));
        }
    }
    arrows
}

/// The module that declares the type of this name which a module declares or imports.
fn declaration_of(name: &str, module: &Place, modules: &Modules) -> Option<Place> {
    let uses = &modules[module];
    if uses.types.contains(name) {
        return Some(module.clone());
    }
    let path = uses.paths.iter().find(|path| path.len() > 1 && path.last().is_some_and(|last| last == name))?;
    absolute(module, path, modules).and_then(|path| declared_in(&path, modules, 0))
}

fn circles_of(modules: &Modules, arrows: Vec<Arrow<'_>>) -> Vec<Circle> {
    let places: Vec<&Place> = modules.keys().collect();
    let mut used = BTreeMap::<(usize, usize), BTreeSet<String>>::new();
    let index = |place: &Place| places.binary_search(&place).expect("arrows are between modules");
    for (from, to, path) in arrows {
        let (from, to) = (index(from), index(to));
        used.entry((from, to)).or_default().insert(path);
    }
    let reached: Vec<BTreeSet<usize>> = (0..places.len()).map(|from| reached_from(from, &used)).collect();
    let circle_of = |module: usize| -> Vec<usize> {
        reached[module].iter().copied().filter(|&other| reached[other].contains(&module)).collect()
    };
    let circles: BTreeSet<Vec<usize>> = (0..places.len()).map(circle_of).collect();
    circles
        .into_iter()
        .filter(|circle| circle.len() > 1)
        .map(|circle| {
            let name = |module: &usize| places[*module].join("::");
            let uses = circle.iter().filter_map(|from| {
                let paths: BTreeSet<&str> =
                    circle.iter().filter_map(|to| used.get(&(*from, *to))).flatten().map(String::as_str).collect();
                (!paths.is_empty()).then(|| format!("{} uses {}", name(from), Vec::from_iter(paths).join(", ")))
            });
            Circle { modules: circle.iter().map(name).collect(), uses: uses.collect() }
        })
        .collect()
}

/// All modules that one leads to by the uses of each; itself only in a circle.
fn reached_from(module: usize, used: &BTreeMap<(usize, usize), BTreeSet<String>>) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut next = vec![module];
    while let Some(from) = next.pop() {
        let uses = used.range((from, 0)..=(from, usize::MAX)).map(|(&(_, to), _)| to);
        next.extend(uses.filter(|&to| reached.insert(to)));
    }
    reached
}

/// A path as seen from the root of the crate; none if it leads out of it.
fn absolute(from: &Place, path: &[String], modules: &Modules) -> Option<Place> {
    let below = |place: &[String], rest: &[String]| [place, rest].concat();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some(below(from, &path[1..])),
        "super" => {
            let steps = path.iter().take_while(|name| *name == "super").count();
            Some(below(&from[..from.len().checked_sub(steps)?], &path[steps..]))
        }
        _ => {
            let place = below(from, path);
            modules.contains_key(&place[..=from.len()]).then_some(place)
        }
    }
}

/// The module that declares what a path from the root names.
fn declared_in(path: &[String], modules: &Modules, depth: usize) -> Option<Place> {
    // A `pub use` that names itself by a glob would be followed for ever.
    const HANDED_ON_MAX: usize = 8;
    let module =
        (0..=path.len()).rev().map(|length| &path[..length]).find(|place| modules.contains_key(*place))?.to_vec();
    let handed_on = path.get(module.len()).and_then(|name| modules[&module].handed_on.get(name));
    match handed_on.and_then(|target| absolute(&module, target, modules)) {
        Some(target) if depth < HANDED_ON_MAX => {
            declared_in(&[target.as_slice(), &path[module.len() + 1..]].concat(), modules, depth + 1)
        }
        _ => Some(module),
    }
}

/// All modules of a crate.
type Modules = BTreeMap<Place, Uses>;

/// A module, another that it uses, and by what.
type Arrow<'a> = (&'a Place, &'a Place, String);

/// A method, or another function of a type.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Method {
    of: String,
    name: String,
}

/// What a module names.
#[derive(Clone, Default)]
struct Uses {
    paths: BTreeSet<Vec<String>>,
    /// The types that it declares.
    types: BTreeSet<String>,
    /// The functions that it declares of types, but for those of traits.
    methods: BTreeSet<Method>,
    calls: BTreeSet<Method>,
    /// The type whose methods are being read.
    within: Option<String>,
    /// Names that others find here though they are declared elsewhere.
    handed_on: BTreeMap<String, Vec<String>>,
}

impl Uses {
    fn tree(&mut self, prefix: &[String], tree: &syn::UseTree, is_public: bool) {
        let with = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree, is_public),
            syn::UseTree::Name(name) if name.ident == "self" => self.used(prefix.to_vec(), None, is_public),
            syn::UseTree::Name(name) => self.used(with(&name.ident), Some(name.ident.to_string()), is_public),
            syn::UseTree::Rename(name) => self.used(with(&name.ident), Some(name.rename.to_string()), is_public),
            syn::UseTree::Glob(_) => self.used(prefix.to_vec(), None, is_public),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(prefix, tree, is_public)),
        }
    }

    /// What is handed on is used by whoever names it, not by the module that hands it on.
    fn used(&mut self, path: Vec<String>, name: Option<String>, is_public: bool) {
        match name {
            Some(name) if is_public => drop(self.handed_on.insert(name, path)),
            _ => drop(self.paths.insert(path)),
        }
    }

    /// Notes a call on a variable or field of this name.
    fn called(&mut self, receiver: &str, name: String) {
        let of = match receiver {
            "self" | "Self" | "this" => self.within.clone(),
            // That of a mutex.
            _ if name == "lock" => None,
            receiver => Some(receiver.split('_').map(capitalized).collect()),
        };
        self.calls.extend(of.map(|of| Method { of, name }));
    }

    /// Notes calls in what a macro is given.
    fn calls_in(&mut self, tokens: &[proc_macro2::TokenTree]) {
        use proc_macro2::TokenTree::{Group, Ident, Punct};
        for window in tokens.windows(4) {
            if let [Ident(receiver), Punct(dot), Ident(name), Group(_)] = window
                && dot.as_char() == '.'
            {
                self.called(&receiver.to_string(), name.to_string());
            }
        }
    }

    fn tokens(&mut self, tokens: proc_macro2::TokenStream) {
        self.calls_in(&Vec::from_iter(tokens.clone()));
        let mut path = Vec::<String>::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                proc_macro2::TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.token_path(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                proc_macro2::TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                proc_macro2::TokenTree::Group(group) => {
                    self.token_path(std::mem::take(&mut path));
                    self.tokens(group.stream());
                }
                _ => self.token_path(std::mem::take(&mut path)),
            }
        }
        self.token_path(path);
    }

    fn token_path(&mut self, path: Vec<String>) {
        if let [of, name] = &path[..]
            && of.starts_with(char::is_uppercase)
        {
            self.called(of, name.clone());
        }
        if path.len() > 1 {
            self.paths.insert(path);
        }
    }
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

/// The last name of the path of a type.
fn name_of_type(of: &syn::Type) -> Option<String> {
    match of {
        syn::Type::Path(of) => of.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        matches!(&attribute.meta, syn::Meta::List(list)
            if list.path.is_ident("cfg")
                && list.tokens.to_string().split(|c: char| !c.is_alphanumeric()).any(|word| word == "test"))
    })
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if let syn::Item::Struct(item) = item {
            self.types.insert(item.ident.to_string());
        }
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let outside = std::mem::replace(&mut self.within, name_of_type(&item.self_ty));
        visit::visit_item_impl(self, item);
        if let Some(of) = self.within.take().filter(|_| item.trait_.is_none()) {
            let functions = item.items.iter().filter_map(|item| match item {
                syn::ImplItem::Fn(function) if !is_for_tests(&function.attrs) => Some(function.sig.ident.to_string()),
                _ => None,
            });
            self.methods.extend(functions.map(|name| Method { of: of.clone(), name }));
        }
        self.within = outside;
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let receiver = match &*call.receiver {
            syn::Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
            syn::Expr::Field(field) => match &field.member {
                syn::Member::Named(name) => Some(name.to_string()),
                syn::Member::Unnamed(_) => None,
            },
            _ => None,
        };
        if let Some(receiver) = receiver {
            self.called(&receiver, call.method.to_string());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&[], &item.tree, !matches!(item.vis, syn::Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.token_path(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}
