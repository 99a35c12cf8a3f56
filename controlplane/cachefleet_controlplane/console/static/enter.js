// Signs in by a link: its code stands behind the #, which no server and no log sees; a form of this page sends it.
"use strict";
const code = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
if (/^[\w-]{20,200}$/.test(code)) {
  const form = document.getElementById("enter");
  form.elements.code.value = code;
  form.requestSubmit();
}
