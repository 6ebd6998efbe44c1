from swirl.older_spellings import find_renamed

find_renamed()
