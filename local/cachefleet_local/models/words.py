"""Word list from which the tokenizer is trained and the demo's prompts are made.

Own text, so that tokenizer, weights and workload are the same on every machine and in every Python version.
"""

from __future__ import annotations

from typing import Final

_TEXT: Final = """
a about above accept access account across act action active add address after again against agent ago agree all
allow almost alone along already also always among amount an and another answer any apply area argument around
as ask at attempt available average avoid away back balance base be because become been before begin behind
being below best better between big block both branch bring budget build but by cache call can cannot capacity
careful case cause certain change check choose city class clean clear client close code cold collect column come
command commit common compare complete compute condition connect consider contain context continue control copy
correct cost could count cover create current customer cut data database date day decide default delay delete
deliver depend describe design detail develop device did differ different difficult direct disk do document does
done double down draft drive drop during each early easy edge edit effect either else empty end engine enough
enter entry equal error even event ever every exact example except exist expect explain express extra fact fail
false fast feature few field file fill filter final find finish first fit fix fleet follow for force forget form
forward found four free from front full function future gain general get give go good great group grow guess
had half hand handle happen hard has hash have head hear heavy help here high hold home hour house how however
idea idle if image important in include increase index information input inside instead interest into invoice is
issue it item its job join just keep key kind know known label language large last late later lead learn leave
left length less let letter level library light like limit line link list little live load local log long look
lose low machine made main make many map mark market match matter may mean measure member memory message method
middle might minute miss mode model moment month more most move much must name narrow near necessary need never
new next night no node none nor normal not note nothing notice now number object observe of off offer often old
on once one only open operation option or order other our out output outside over own page paper parent part
pass past path pattern pay people perhaps period person place plain plan please point policy pool position
possible prefix prepare present press price print problem process produce product program project promise prompt
proper protect prove provide public pull purpose push put quality query question queue quick quiet quite range
rate rather reach read ready real reason receive record reduce refer refuse region regular release remain
remember remove repeat replace reply report request require reset resolve resource response rest result retry
return review right road role room root round route row rule run safe same save say scale schedule school
score search second section see seem select send sense sentence separate sequence serve server service session
set several shall share ship short should show side sign simple since single size slow small snapshot so some
soon sort source space speak special speed spend stage stand standard start state statement station status stay
step still stop store story stream string strong structure study style subject submit such suggest summary
support sure system table take talk task team tell ten term test text than that the their them then there
therefore these they thing think third this those though thought thread three through ticket time to today
together token too tool top total toward trace track traffic train transfer travel tree true try turn two type
under understand unit until up update upon use user usual valid value various verify version very view visit
wait walk want warm warn was watch water way we week weight well went were what when where whether which while
who whole why wide will window with within without word work worker world would write wrong year yes yet you
young your zero
"""

WORDS: Final = tuple(_TEXT.split())
