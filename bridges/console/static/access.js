// Who may do what, and how much: users, rules, quotas.

import { get, query as asked, send } from "./api.js";
import { card, choice, confirmed, dialog, failed, field, fill, h, note, nothing, table, tag } from "./dom.js";
import { innerList } from "./topics.js";

const RESOURCES = ["topic", "group", "transactional id", "node", "token", "user"];

export function access({ element, refresh }) {
  const users = h("div", {}), rules = h("div", {}), quotas = h("div", {});
  const [userList, quotaList, ruleList] = [0, 1, 2].map(() => innerList(refresh));
  ruleList.search.placeholder = "Who, what, which operation";
  element.append(h("h1", {}, "Access"), h("div", { class: "grid" }, card("Users", h("div", { class: "bar" }, userList.search), users), card("Quotas", h("div", { class: "bar" }, quotaList.search, h("button", { type: "button", class: "plain", onclick: () => setQuota(refresh) }, "Set a quota…")), quotas)),
    card("Rules", h("div", { class: "bar" }, ruleList.search, h("button", { type: "button", class: "plain", onclick: () => addRule(refresh) }, "Add a rule…")), rules));
  const own = async (where, path, draw) => { try { draw(await get(path)); } catch (error) { if (!error.status) throw error; fill(where, error.status === 409 ? h("p", { class: "empty" }, error.message) : failed(error)); } };
  async function look() {
    await Promise.all([
      own(users, "/api/users" + asked(userList.wanted()), (told) => fill(users, table([
        { title: "User", cell: (one) => one.user }, { title: "SCRAM", cell: (one) => one.scram.join(", ") || nothing() },
      ], told.users, { empty: userList.state.search ? "No user of that name." : "No users. Add some with: anabranch user add NAME", caption: "Users" }), told.total ? userList.pages(told, told.users) : null)),
      own(quotas, "/api/quotas" + asked(quotaList.wanted()), (told) => fill(quotas, table([
        { title: "Of", cell: (one) => entity(one.entity) }, { title: "Quotas", kind: "mono", keep: true, cell: (one) => Object.entries(one.values).map(([name, value]) => `${name} = ${value}`).join(", ") },
        { title: "", cell: (one) => h("button", { type: "button", class: "danger", "data-key": "q" + entity(one.entity), onclick: () => confirmed("Remove these quotas?", entity(one.entity), "Remove", async () => { await send("POST", "/api/quotas/remove", { entity: one.entity }); refresh(); }) }, "Remove…") },
      ], told.quotas, { empty: quotaList.state.search ? "No such quota." : "No quotas.", caption: "Quotas" }), told.total ? quotaList.pages(told, told.quotas) : null)),
      own(rules, "/api/acls" + asked(ruleList.wanted()), (told) => fill(rules, table([
        { title: "", cell: (one) => (one.allow ? tag("good", "allow") : tag("bad", "deny")) }, { title: "Who", keep: true, cell: (one) => one.principal }, { title: "From", cell: (one) => one.host },
        { title: "May", keep: true, cell: (one) => one.operation }, { title: "Resource", keep: true, cell: (one) => `${one.resource} ${one.name}${one.pattern === "prefixed" ? "…" : ""}` },
        { title: "", cell: (one) => h("button", { type: "button", class: "danger", "data-key": "r" + JSON.stringify(one), onclick: () => confirmed("Remove this rule?", `${one.allow ? "allow" : "deny"} ${one.principal} ${one.operation} ${one.resource} ${one.name}`, "Remove", async () => { await send("POST", "/api/acls/remove", one); refresh(); }) }, "Remove…") },
      ], told.acls, { empty: ruleList.state.search ? "No such rule." : "No rules.", caption: "Rules" }), told.total ? ruleList.pages(told, told.acls) : null)),
    ]);
  }
  return { element, refresh: look };
}

const entity = (parts) => Object.entries(parts).map(([kind, name]) => `${kind} ${name === null ? "(default)" : name}`).join(", ");

function form(title, fields, word, action) {
  const problem = h("div", { role: "alert" });
  const close = dialog(title, h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try { await action(); close(); } catch (error) { fill(problem, failed(error)); }
  } }, fields, problem, h("div", { class: "bar end" }, h("button", { type: "button", class: "plain", onclick: () => close() }, "Cancel"), h("button", { class: "main" }, word))));
}

function addRule(refresh) {
  const same = (words) => words.map((one) => [one, one]);
  const allow = choice([["true", "allow"], ["false", "deny"]], "true"), principal = h("input", { value: "User:", required: true }), host = h("input", { value: "*" });
  const operation = h("input", { value: "read", required: true }), resource = choice(same(RESOURCES), "topic"), pattern = choice(same(["literal", "prefixed"]), "literal"), name = h("input", { required: true, placeholder: "* is every name" });
  form("Add a rule", h("div", { class: "bar" }, field("What", allow), field("Who", principal), field("From host", host), field("Operation", operation), field("Resource", resource), field("Names", pattern), field("Name", name)), "Add", async () => {
    await send("POST", "/api/acls", { allow: allow.value === "true", principal: principal.value, host: host.value, operation: operation.value, resource: resource.value, pattern: pattern.value, name: name.value });
    note("the rule holds"); refresh();
  });
}

function setQuota(refresh) {
  const user = h("input", {}), client = h("input", {}), name = h("input", { value: "producer_byte_rate", required: true }), value = h("input", { type: "number", min: 0, required: true });
  form("Set a quota", h("div", { class: "bar" }, field("User", user), field("Client id", client), field("Quota", name), field("Value", value)), "Set", async () => {
    await send("POST", "/api/quotas", { entity: { ...(user.value ? { user: user.value } : {}), ...(client.value ? { "client-id": client.value } : {}) }, values: { [name.value]: Number(value.value) } });
    note("the quota holds"); refresh();
  });
}
