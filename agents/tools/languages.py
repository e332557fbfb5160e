"""English names of the languages that countries list first, by ISO 639 code."""

from __future__ import annotations

_NAMES = """
aa Afar, am Amharic, ar Arabic, az Azerbaijani, be Belarusian, bg Bulgarian, bi Bislama, bn Bengali, bs Bosnian,
ca Catalan, cmn Chinese, cs Czech, da Danish, de German, dv Dhivehi, dz Dzongkha, el Greek, en English, es Spanish,
et Estonian, fa Persian, fi Finnish, fil Filipino, fo Faroese, fr French, he Hebrew, hr Croatian, ht Haitian Creole,
hu Hungarian, hy Armenian, id Indonesian, is Icelandic, it Italian, ja Japanese, ka Georgian, kk Kazakh,
kl Greenlandic, km Khmer, ko Korean, ky Kyrgyz, la Latin, lb Luxembourgish, lo Lao, lt Lithuanian, lv Latvian,
mh Marshallese, mk Macedonian, mn Mongolian, ms Malay, mt Maltese, my Burmese, na Nauruan, ne Nepali, niu Niuean,
nl Dutch, no Norwegian, ny Chichewa, pau Palauan, pl Polish, pt Portuguese, ro Romanian, ru Russian, rw Kinyarwanda,
si Sinhala, sk Slovak, sl Slovenian, sm Samoan, so Somali, sq Albanian, sr Serbian, sv Swedish, sw Swahili,
tet Tetum, tg Tajik, th Thai, tk Turkmen, tkl Tokelauan, tl Tagalog, to Tongan, tr Turkish, tvl Tuvaluan,
uk Ukrainian, ur Urdu, uz Uzbek, vi Vietnamese, wls Wallisian, zh Chinese, zu Zulu
"""
LANGUAGES = dict(entry.split(" ", 1) for entry in " ".join(_NAMES.split()).split(", "))


def first_language(codes: str) -> str | None:
    """The name of the first of `codes` ("pt-PT,mwl": Portuguese); None if there is none, or it has no name here."""
    return LANGUAGES.get(codes.split(",")[0].split("-")[0])
