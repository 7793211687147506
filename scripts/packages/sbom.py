"""The list of all files of a package and of the packages that they came from, as SPDX 2.3."""
import datetime
import hashlib
import json
import os
import re
import time

NOT_STATED = "NOASSERTION"


def identifier(*parts):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(parts))


def digest(path, algorithm):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def files_of(tree):
    """Yields the paths of all files below a folder, relative to it. Links are left out, because their files are listed."""
    for folder, folders, names in os.walk(tree):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                yield os.path.relpath(path, tree)


def file_entry(tree, path):
    full = os.path.join(tree, path)
    return {"SPDXID": identifier("File", path), "fileName": f"./{path}",
            "checksums": [{"algorithm": "SHA1", "checksumValue": digest(full, "sha1")},
                          {"algorithm": "SHA256", "checksumValue": digest(full, "sha256")}],
            "licenseConcluded": NOT_STATED, "copyrightText": NOT_STATED}


def package_entry(name, version, declared, files):
    entry = {"SPDXID": identifier("Package", name), "name": name, "versionInfo": version, "downloadLocation": NOT_STATED,
             "filesAnalyzed": bool(files), "licenseConcluded": NOT_STATED, "licenseDeclared": declared, "copyrightText": NOT_STATED}
    if files:
        sums = sorted(file["checksums"][0]["checksumValue"] for file in files)
        entry["packageVerificationCode"] = {"packageVerificationCodeValue": hashlib.sha1("".join(sums).encode()).hexdigest()}
    return entry


def document(tree, version, copied, linked, compiled):
    """copied: {path in the tree: its Debian package}. linked, compiled: packages whose libraries the
    programs load from the machine, and packages whose headers are compiled into the program."""
    files = {path: file_entry(tree, path) for path in files_of(tree)}
    own = package_entry("shardmark", version, "Apache-2.0", [entry for path, entry in files.items() if path not in copied])
    packages, licenses = [own], []
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", own["SPDXID"])]
    relations += [(own["SPDXID"], "CONTAINS", entry["SPDXID"]) for path, entry in files.items() if path not in copied]
    for package in sorted({*copied.values(), *linked, *compiled}):
        theirs = [files[path] for path, owner in copied.items() if owner == package]
        license_id = f"LicenseRef-{re.sub(r'[^A-Za-z0-9.-]', '-', package.name)}"
        entry = package_entry(package.name, package.version, license_id, theirs)
        entry["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator":
                                  f"pkg:deb/debian/{package.name}@{package.version}?arch={package.architecture}"}]
        packages.append(entry)
        licenses.append({"licenseId": license_id, "name": f"licences of {package.name}", "extractedText": package.license_text})
        relations += [(entry["SPDXID"], "CONTAINS", file["SPDXID"]) for file in theirs]
        if package in linked or any(file["fileName"].startswith("./lib/") for file in theirs):
            relations.append((own["SPDXID"], "DYNAMIC_LINK", entry["SPDXID"]))
        elif theirs:
            relations.append((own["SPDXID"], "DEPENDS_ON", entry["SPDXID"]))
        if package in compiled:
            relations.append((own["SPDXID"], "STATIC_LINK", entry["SPDXID"]))
    created = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), datetime.UTC)
    content = hashlib.sha256(json.dumps([*files.values(), *packages]).encode()).hexdigest()
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"shardmark-{version}",
            "documentNamespace": f"https://spdx.org/spdxdocs/shardmark-{version}-{content}",
            "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: shardmark-scripts-packages"]},
            "packages": packages, "files": list(files.values()), "hasExtractedLicensingInfos": licenses,
            "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b} for a, kind, b in relations]}
