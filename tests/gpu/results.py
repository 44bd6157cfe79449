"""What a run of the checks found: checks that pass, fail or could not be made,
and measurements. Written as JSON, from which the report is made."""

import json
import time

PASS, FAIL, SKIP = "pass", "FAIL", "skip"
# Of a line that is printed meanwhile; the report has all of it.
WIDTH = 300


class Results:
    def __init__(self, machine):
        self.machine = machine
        self.checks = []
        self.measurements = []
        self.seconds = {}

    def check(self, group, name, good, otherwise="", found="", hazards=()):
        """`otherwise` says why it is not; `found` is worth a note either way;
        `hazards` are the rows of docs/compatibility.md that it bears on."""
        state = PASS if good else FAIL
        self._add(group, name, state, found if good else otherwise, hazards)
        return good

    def skip(self, group, name, why):
        self._add(group, name, SKIP, why)

    def measured(self, group, name, value, unit, assumed=None, note=""):
        """A figure; `assumed` is what was taken for granted, if anything."""
        self.measurements.append(
            {
                "group": group,
                "name": name,
                "value": value,
                "unit": unit,
                "assumed": assumed,
                "note": note,
            }
        )

    def _add(self, group, name, state, note, hazards=()):
        note = str(note).strip()
        made = {"group": group, "name": name, "state": state, "note": note}
        self.checks.append({**made, "hazards": list(hazards)})
        if state != PASS:
            first = note.splitlines()[0] if note else ""
            print(f"{state}  {group}: {name}: {first}"[:WIDTH], flush=True)

    def count(self, state, group=None):
        return sum(
            each["state"] == state and group in (None, each["group"]) for each in self.checks
        )

    def count_all(self, group):
        return sum(each["group"] == group for each in self.checks)

    def groups(self):
        return list(dict.fromkeys(each["group"] for each in self.checks))

    def write(self, path):
        path.write_text(json.dumps(self.__dict__, indent=1, ensure_ascii=False) + "\n")


def read(path):
    """What was written; several runs of parts of the checks can become one."""
    found = json.loads(path.read_text())
    results = Results(found["machine"])
    results.__dict__.update(found)
    return results


def joined(parts):
    """One of many: what a later one looked at again counts as it found it. Which
    commits and days are in it is said, and what none of them looked at."""
    said = [part.machine for part in parts]
    whole = Results({**parts[-1].machine, **{key: listed(said, key) for key in ("date", "commit")}})
    for part in parts:
        whole.checks = newer(whole.checks, [each for each in part.checks if each["state"] != SKIP])
        whole.measurements = newer(whole.measurements, part.measurements)
        for group, seconds in part.seconds.items():
            whole.seconds[group] = whole.seconds.get(group, 0) + seconds
    looked_at = {(each["group"], each["name"]) for each in whole.checks}
    for part in parts:
        left = [each for each in part.checks if each["state"] == SKIP]
        left = [each for each in left if (each["group"], each["name"]) not in looked_at]
        whole.checks = newer(whole.checks, left)
    return whole


def listed(machines, key):
    """What the machines of all parts say, each thing once."""
    return ", ".join(dict.fromkeys(each[key] for each in machines if each.get(key)))


def newer(old, new):
    """Both lists as one, each name once in a group."""
    again = {(each["group"], each["name"]) for each in new}
    return [each for each in old if (each["group"], each["name"]) not in again] + new


def now():
    return time.strftime("%Y-%m-%d %H:%M")
